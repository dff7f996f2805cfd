package tool

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tare/test/vm/guest"
)

// no stands for a number that a tool does not print.
const no = -1

// want holds the expected values of a Part; no means that a value must be absent.
type want struct {
	requests, errors, bytes            float64
	seconds, rate                      float64
	mean, p50, p90, p99, p999, largest float64
}

func (w want) check(t *testing.T, name string, p Part) {
	t.Helper()
	whole := func(n *int64) *float64 {
		if n == nil {
			return nil
		}
		f := float64(*n)
		return &f
	}
	for _, c := range []struct {
		what string
		got  *float64
		want float64
	}{{"requests", whole(p.Requests), w.requests}, {"errors", whole(p.Errors), w.errors},
		{"bytes", whole(p.Bytes), w.bytes}, {"seconds", p.Seconds, w.seconds}, {"rate", p.Rate, w.rate},
		{"mean", p.Mean, w.mean}, {"p50", p.P50, w.p50},
		{"p90", p.P90, w.p90}, {"p99", p.P99, w.p99}, {"p99.9", p.P999, w.p999}, {"max", p.Max, w.largest}} {
		switch {
		case c.got == nil && c.want != no:
			t.Errorf("%s: %s is absent, want %v", name, c.what, c.want)
		case c.got != nil && (c.want == no || math.Abs(*c.got-c.want) > 1e-6*c.want):
			t.Errorf("%s: %s is %v, want %v", name, c.what, *c.got, c.want)
		}
	}
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	line, output, _ := strings.Cut(string(b), "\n")
	if !firstLine.MatchString(line) {
		t.Fatalf("%s does not begin with its tool, version and command line", file)
	}
	return []byte(output)
}

// firstLine matches the first line of a file in testdata: the tool, its version, and the command line, or the source
// after which the output was written.
var firstLine = regexp.MustCompile(`^# (\S+) ([0-9a-f][^:]*): .+$`)

// corpus returns the names of the files in testdata.
func corpus(t testing.TB) (files []string) {
	t.Helper()
	entries, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != "README.md" {
			files = append(files, e.Name())
		}
	}
	return files
}

// toolOf returns the tool whose output a file holds, by its first line.
func toolOf(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return firstLine.FindStringSubmatch(line)[1]
}

// refused holds the files whose output must be refused, with a part of the error.
var refused = map[string]string{
	"hey-requests.csv": "leave out -o csv", "fio-text.txt": "run it with --output-format=json",
	"fio-3.33-terse.txt": "fio's terse format", "ab-2.4.67-idle.txt": `no "Requests per second"`, "ab-2.4.67-quiet.txt": "leave out -d",
	"ab-2.4.68-html.txt": "leave out -w", "fio-3.39-status.json": "more than one run",
	"k6-1.8.1-machine.json": "no metrics.http_reqs", "redis-benchmark-7.0.15-command.csv": "its table is broken",
}

// TestParse: for the whole corpus, Parse finds the numbers that a person reads in the outputs, in seconds and bytes.
func TestParse(t *testing.T) {
	guest.KernelFree(t)
	seen, outputs := map[string]bool{}, map[string]int{}
	for _, c := range []struct {
		tool, file string
		want       want
		parts      []string
	}{
		{"wrk", "wrk-latency.txt",
			want{1492, 0, 109.28 * 1024, 1.12, 1337.57, 8.73e-3, 1.12e-3, 31.22e-3, 48.56e-3, no, 53.64e-3}, nil},
		{"wrk", "wrk-plain.txt", want{2163, 0, 158.42 * 1024, 1.16, 1858.57, 9.67e-3, no, no, no, no, 95.72e-3}, nil},
		{"wrk", "wrk-status.txt",
			want{1955, 965, 159.21 * 1024, 1.09, 1791.03, 7.76e-3, 247e-6, 26.81e-3, 59.42e-3, no, 74.07e-3}, nil},
		{"wrk", "wrk-timeout.txt",
			want{13, 2, 0.95 * 1024, 2.04, 6.38, 12.58e-3, 2.66e-3, 36.08e-3, 56.38e-3, no, 56.38e-3}, nil},
		{"wrk2", "wrk2-latency.txt",
			want{392, 0, 28.71 * 1024, 2, 195.85, 14.26e-3, 9.71e-3, 34.43e-3, 54.27e-3, 68.67e-3, 68.67e-3}, nil},
		{"wrk2", "wrk2-uncorrected.txt",
			want{401, 0, 29.37 * 1024, 2, 200.08, 21.77e-3, 16.14e-3, 50.97e-3, 90.62e-3, 97.66e-3, 97.66e-3}, nil},
		{"wrk2", "wrk2-plain.txt", want{96, 0, 7.03 * 1024, 1.01, 94.89, 13.38e-3, no, no, no, no, 53.6e-3}, nil},
		{"wrk2", "wrk2-calibrated.txt", want{2401, no, 1.5 * 1024 * 1024, 12, 200.08, 1.05e-3, no, no, no, no, 3.12e-3}, nil},
		{"hey", "hey.txt", want{121, 0, no, 1.0063, 120.2449, 6.2e-3, 0.6e-3, 17.1e-3, 133.9e-3, no, 133.9e-3}, nil},
		{"hey", "hey-status.txt", want{200, 93, no, 0.3755, 532.5993, 3.4e-3, 0.3e-3, 8e-3, 53.4e-3, no, 54.7e-3}, nil},
		{"hey", "hey-refused.txt", want{4, 4, no, 0.0234, 171.1272, no, no, no, no, no, no}, nil},
		{"ab", "ab.txt", want{500, 0, 37500, 0.952, 525.31, 3.807e-3, no, 9e-3, 52e-3, no, 79e-3}, nil},
		{"ab", "ab-keepalive.txt", want{647, 0, 64053, 1.002, 645.88, 3.097e-3, no, 6e-3, 48e-3, no, 111e-3}, nil},
		{"ab", "ab-status.txt", want{200, 99, 16683, 0.378, 529.47, 3.777e-3, no, 10e-3, 47e-3, no, 48e-3}, nil},
		{"fortio", "fortio.json",
			want{200, 0, 15000, 1.018874535, 196.2950227, 7.15717293e-3, 0.78236134e-3, 35.8333333e-3, 80e-3,
				94.0204881e-3, 94.467209e-3}, nil},
		{"redis-benchmark", "redis-benchmark-one.txt",
			want{2000, no, no, 0.87, 2296.21, 0.854e-3, 0.039e-3, no, 28.175e-3, no, 97.727e-3}, nil},
		{"redis-benchmark", "redis-benchmark.txt",
			want{4000, no, no, 2.07, 2 / (1/1353.18 + 1/3395.59), (1.261e-3 + 0.511e-3) / 2, no, no, no, no, 263.423e-3},
			[]string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark.csv",
			want{no, no, no, no, 2 / (1/3629.76 + 1/6557.38), (0.507e-3 + 0.29e-3) / 2, no, no, no, no, 58.015e-3},
			[]string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-rounds.csv",
			want{no, no, no, no, 6 / (1/24096.39 + 1/32786.89 + 1/20833.33 + 1/23529.41 + 1/18867.92 + 1/8810.57),
				(0.047e-3 + 0.044e-3 + 0.084e-3 + 0.071e-3 + 0.086e-3 + 0.159e-3) / 6, no, no, no, no, 50.335e-3},
			[]string{"SET", "GET"}},
		{"fio", "fio-mixed.json",
			want{365, 0, 745472 + 749568, 1.040, 175 + 175.961538, no, no, no, no, no, no},
			[]string{"mixed read", "mixed write"}},
		{"fio", "fio-group-mixed.json",
			want{121, 0, 31457280 + 31981568, 0.301, 199.335548 + 202.657807, no, no, no, no, no, no},
			[]string{"load read", "load write"}},
		{"fio", "fio-jobs.json",
			want{196, 0, 802816, 1.046, 93.690249 + 94.777563, no, no, no, no, no, no}, []string{"write write", "write write"}},
		{"fio", "fio-group.json",
			want{189, 0, 774144, 1.053, 179.487179, 14.436529101e-6, 2.8e-6, 32.384e-6, 146.432e-6, 337.92e-6,
				335.993e-6}, nil},
		{"k6", "k6.txt", want{101, 0, 7600, no, 50.35679, 4.85e-3, 686.4e-6, 10.77e-3, no, no, 53.93e-3}, nil},
		{"k6", "k6-full.txt", want{101, 0, 7600, no, 50.194394, 1.54e-3, 615.57e-6, 4.35e-3, no, no, 10.67e-3}, nil},
		{"k6", "k6-legacy.txt", want{101, 56, 8500, no, 50.210214, 6.11e-3, 718.54e-6, 18.55e-3, no, no, 78.88e-3}, nil},
		{"k6", "k6-old.txt", want{180, 3, 1.3e6, no, 4.36938, 144.56e-3, 110.47e-3, 203.54e-3, no, no, 1.14}, nil},
		{"k6", "k6-export.json",
			want{101, 56, 8527, no, 50.21021406, 6.1157882e-3, 718.541e-6, 18.559898e-3, no, no, 78.889172e-3}, nil},
		{"k6", "k6-handle.json",
			want{60, 34, 5078, 84.61129e-3, 709.1252243, 2.36850407e-3, 284.29e-6, 3.8659823e-3, 38.1135679e-3,
				38.2136471e-3, 38.224767e-3}, nil},
		{"wrk", "wrk-4.0.2.txt",
			want{13456, 0, 0.96 * 1024 * 1024, 1.02, 13248.63, 1.35e-3, 58e-6, 4.16e-3, 13.71e-3, no, 20.04e-3}, nil},
		{"wrk", "wrk-4.0.2-status.txt",
			want{9191, 959, 722.4 * 1024, 1.1, 8322.65, 1.11e-3, 49e-6, 3.76e-3, 9.92e-3, no, 19.96e-3}, nil},
		{"wrk", "wrk-4.2.0.txt",
			want{9298, 0, 681.01 * 1024, 1.08, 8641.09, 7.17e-3, 62e-6, 27.62e-3, 45.97e-3, no, 54.52e-3}, nil},
		{"wrk", "wrk-4.2.0-status.txt",
			want{4451, 436, 349.94 * 1024, 1.12, 3974.34, 8.57e-3, 60e-6, 29.19e-3, 85.85e-3, no, 104.42e-3}, nil},
		{"wrk2", "wrk2-status.txt",
			want{100, 58, 8.29 * 1024, 1.02, 98.17, 11.52e-3, 6.57e-3, 29.04e-3, 36.99e-3, 38.17e-3, 38.17e-3}, nil},
		{"hey", "hey-0.1.5.txt", want{300, 0, no, 0.0682, 4401.5149, 0.4e-3, 0.1e-3, 0.2e-3, 9e-3, no, 20.8e-3}, nil},
		{"hey", "hey-0.1.5-status.txt",
			want{110, 27, no, 1.0058, 109.3612, 2.2e-3, 0.6e-3, 1.3e-3, 45.1e-3, no, 45.1e-3}, nil},
		{"hey", "hey-0.1.5-refused.txt", want{4, 4, no, 0.0006, 6347.2921, no, no, no, no, no, no}, nil},
		{"hey", "hey-0.1.5-one.txt", want{1, 0, no, 0.0019, 531.3787, 1.8e-3, no, no, no, no, 1.8e-3}, nil},
		{"ab", "ab-length.txt", want{100, 59, 25800, 0.743, 134.51, 7.435e-3, no, 36e-3, 83e-3, no, 83e-3}, nil},
		{"ab", "ab-2.4.62.txt", want{300, 0, 22500, 0.12, 2494.93, 1.202e-3, no, 1e-3, 42e-3, no, 43e-3}, nil},
		{"ab", "ab-2.4.62-one.txt", want{1, 0, 75, no, 2032.52, 0.492e-3, no, no, no, no, no}, nil},
		{"ab", "ab-2.4.69.txt", want{300, 0, 22500, 0.082, 3668.74, 0.545e-3, no, no, 13e-3, no, 19e-3}, nil},
		{"ab", "ab-2.4.69-variable.txt", want{200, 0, 59200, 0.2, 1001.91, 1.996e-3, no, 1e-3, 60e-3, no, 72e-3}, nil},
		{"fortio", "fortio-status.json",
			want{200, 98, 16666, 1.036143383, 193.0234785, 5.69951451e-3, 0.81863415e-3, 16e-3, 70e-3, 80.3465704e-3,
				80.433213e-3}, nil},
		{"fortio", "fortio-1.63.0.json",
			want{200, 0, 15000, 1.016912087, 196.673835, 1.76253171e-3, 0.555789473e-3, 0.983944198e-3, 42.3928585e-3,
				44.5464312e-3, 44.785717e-3}, nil},
		{"fortio", "fortio-1.63.10-flat-out.json",
			want{100, 0, 7500, 0.024501133, 4081.443907, 0.24481736e-3, 0.531881755e-3, 0.947986868e-3, 4e-3, 10.1383255e-3,
				10.153695e-3}, nil},
		{"fortio", "fortio-1.67.1-tcp.json",
			want{100, 0, no, 1.010192526, 98.99103134, 0.48143612e-3, 0.531181383e-3, 0.947909043e-3, 11e-3, 11.3742713e-3,
				11.415857e-3}, nil},
		{"fortio", "fortio-1.67.1-grpc.json",
			want{94, 0, no, 1.002480282, 93.76743033, 2.356371713e-3, 0.63802e-3, 3.76666667e-3, 64.5409276e-3,
				68.165102e-3, 68.567788e-3}, nil},
		{"fortio", "fortio-1.68.2.json",
			want{100, 0, 186700, 1.006365708, 99.36745579, 5.45947572e-3, 3.962962963e-3, 8.333333333e-3, 37.2342195e-3,
				39.24501705e-3, 39.468439e-3}, nil},
		{"fortio", "fortio-1.68.2-status.json",
			want{60, 60, 20480, 0.603868212, 99.35942778, 5.546790483e-3, 2.538461538e-3, 5.5e-3, 83.67867040e-3,
				88.64487544e-3, 89.196676e-3}, nil},
		{"fortio", "fortio-1.67.1-refused.json",
			want{20, 20, 0, 0.429227908, 46.59529268, 4.09411885e-3, 0.58959525e-3, 4e-3, 55.0110136e-3, 56.1384917e-3,
				56.263767e-3}, nil},
		{"redis-benchmark", "redis-benchmark-quiet.txt",
			want{no, no, no, no, 2 / (1/30303.03 + 1/4962.78), no, no, no, no, no, no}, []string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-6.0.16.txt",
			want{4000, no, no, 0.22, 2 / (1/17391.30 + 1/20833.33), no, no, no, no, no, no}, []string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-6.0.16.csv",
			want{no, no, no, no, 2 / (1/15151.52 + 1/24096.39), no, no, no, no, no, no}, []string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-6.0.16-quiet.txt",
			want{no, no, no, no, 2 / (1/19607.84 + 1/25974.03), no, no, no, no, no, no}, []string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-8.0.2.txt",
			want{4000, no, no, 0.1, 2 / (1/44444.44 + 1/43478.26), 0.0315e-3, no, no, no, no, 12.567e-3},
			[]string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-8.0.2.csv",
			want{no, no, no, no, 2 / (1/12820.51 + 1/13071.90), 0.1335e-3, no, no, no, no, 40.031e-3},
			[]string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-8.0.2-quiet.txt",
			want{no, no, no, no, 2 / (1/40000.0 + 1/12738.85), no, no, no, no, no, no}, []string{"SET", "GET"}},
		{"fio", "fio-error.txt", want{1, no, 0, no, 0, no, no, no, no, no, no}, nil},
		{"fio", "fio-3.25.json",
			want{401, 0, 819200 + 823296, 1.001, 199.8002 + 200.799201, no, no, no, no, no, no},
			[]string{"mixed read", "mixed write"}},
		{"fio", "fio-3.41.json",
			want{401, 0, 819200 + 823296, 1.001, 199.8002 + 200.799201, no, no, no, no, no, no},
			[]string{"mixed read", "mixed write"}},
		{"fio", "fio-3.39-plus.json",
			want{64, 0, 4194304, 0.018, 3555.555556, 180.803e-6, 3.888e-6, 11.584e-6, 3.751936e-3, 3.751936e-3, 3.74181e-3},
			nil},
		{"fio", "fio-3.41-fsync.txt",
			want{64, 0, 262144, 0.111, 576.576577, 7.0603125e-6, 2.8e-6, 21.888e-6, 35.584e-6, 35.584e-6, 35.683e-6}, nil},
		{"k6", "k6-0.26.txt", want{420, no, 148e3, no, 7.000001, 143.14e-3, 136.03e-3, 164.2e-3, no, no, 1.18}, nil},
		{"oha", "oha-1.4.7-status.txt",
			want{200, 63, 0, 0.0091, 22094.8821, 0.1e-3, 0.1e-3, 0.1e-3, 0.8e-3, 1.1e-3, 1.1e-3}, nil},
		{"oha", "oha-1.4.7-refused.txt", want{4, 4, 0, 0.0003, 12893.5349, no, no, no, no, no, no}, nil},
		{"oha", "oha-1.4.7.json",
			want{100, 21, 0, 1.000936646, 100.905487, 0.1143541e-3, 0.101592e-3, 0.189522e-3, 0.412906e-3, 0.412906e-3,
				0.412906e-3}, nil},
		{"oha", "oha-1.15.0.txt",
			want{300, 0, 0, 0.0275131, 10903.8828, 0.1741e-3, 0.0456e-3, 0.0942e-3, 3.6408e-3, 8.3375e-3, 8.3375e-3}, nil},
		{"oha", "oha-1.15.0-status.txt",
			want{101, 33, 0, 1.0103, 99.9703, 2.0618e-3, 0.3329e-3, 4.6139e-3, 25.2465e-3, 32.0348e-3, 32.0348e-3}, nil},
		{"oha", "oha-1.15.0.json",
			want{101, 33, 0, 1.003283115, 100.6694905, 0.702676812e-3, 0.279286e-3, 1.34122e-3, 7.552915e-3,
				11.500863e-3, 11.500863e-3}, nil},
		{"oha", "oha-1.15.0-refused.txt", want{4, 4, 0, 0.00264205, 1513.9759, no, no, no, no, no, no}, nil},
		{"oha", "oha-1.15.0-refused.json", want{4, 4, 0, 0.000957759, 4176.415988, no, no, no, no, no, no}, nil},
		{"ab", "ab-2.4.67-reset.txt", want{100, no, 9044, 0.078, 1285.43, 3.112e-3, no, 1e-3, 67e-3, no, 67e-3}, nil},
		{"ab", "ab-2.4.68-kinds.txt", want{100, no, 13969, 0.013, 7695.27, 0.26e-3, no, no, 5e-3, no, 5e-3}, nil},
		{"ab", "ab-2.4.68-status.txt", want{200, 55, 24735, 0.268, 746.34, 2.68e-3, no, no, 82e-3, no, 122e-3}, nil},
		{"fio", "fio-3.25-cont.json", want{1, 1, 0, no, 0, no, no, no, no, no, no}, nil},
		{"fio", "fio-3.25-list.json",
			want{64, 0, 262144, 0.001, 64000, 0.00065515625e-3, no, no, no, no, 0.012048e-3}, nil},
		{"fio", "fio-3.33-sections.json",
			want{188, 0, 770048, no, no, 2.09513487766e-3, 238.592e-6, 2.342912e-3, 49.545216e-3, 131.596288e-3,
				131.749478e-3}, nil},
		{"fio", "fio-3.33-sections-numjobs.json",
			want{400, 0, 1638400, no, no, 0.741781238e-3, 0.195584e-3, 2.113536e-3, 7.110656e-3, 44.302336e-3,
				44.116701e-3}, nil},
		{"fio", "fio-3.33-sections-mixed.json", want{301, 0, 1232896, no, no, no, no, no, no, no, no},
			[]string{"a read", "a write"}},
		{"fio", "fio-3.33-both.json",
			want{64, 0, 262144, 0.008, 8000, no, no, no, no, no, no}, []string{"n read", "n write"}},
		{"fio", "fio-3.39-gtod.json", want{64, 0, 262144, 0.001, 64000, no, no, no, no, no, no}, nil},
		{"fio", "fio-3.41-lat.json",
			want{64, 0, 262144, 0.004, 16000, 0.05987476562e-3, no, no, no, no, 2.224839e-3}, nil},
		{"fio", "fio-3.41-stonewall.json", want{128, 0, 524288, no, no, no, no, no, no, no, no},
			[]string{"a write", "b read"}},
		{"fio", "fio-3.33-verify.json", want{1024, 0, 2 * 2097152, no, no, no, no, no, no, no, no},
			[]string{"v read", "v write"}},
		{"fio", "fio-3.33-delay.json", want{400, 0, 1638400, no, no, no, no, no, no, no, no},
			[]string{"a write", "b read"}},
		{"ab", "ab-2.4.71-write.txt", want{20, no, 0, 0.253, 79.17, 25.263e-3, 9e-3, 19e-3, 83e-3, no, 83e-3}, nil},
		{"fio", "fio-3.41-unified.json",
			want{64, 0, 262144, 0.002, 32000,
				0.025300625e-3, 0.00392e-3, 0.04992e-3, 0.20992e-3, 0.20992e-3, 0.210891e-3}, nil},
		{"fortio", "fortio-1.21.0-teapot.json",
			want{20, 0, 2430, 0.298780833, 66.93869817,
				8.4091036e-3, 0.6513910714e-3, 20e-3, 87.0957904e-3, 88.69234324e-3, 88.869738e-3}, nil},
		{"fortio", "fortio-1.3.1-status.json",
			want{88, 31, 10999, 1.072481353, 82.05270866,
				1.270620614e-3, 0.5482041e-3, 0.97802074e-3, 20.39724356e-3, 23.01905106e-3, 23.310363e-3}, nil},
		{"fortio", "fortio-1.38.0-nocatchup.json",
			want{44, 0, 5236, 1.02302858, 43.00955111,
				21.16082802e-3, 0.774882e-3, no, no, 367.5356872e-3, 368.342769e-3}, nil},
		{"fortio", "fortio-1.38.0-teapot.json",
			want{20, 8, 2460, 0.21326719, 93.77907591,
				2.9196801e-3, 0.6527007143e-3, 5e-3, 40.0174816e-3, 40.02141496e-3, 40.021852e-3}, nil},
		{"hey", "hey-0.1.3-one.txt", want{1, 0, 3, 0.1771, 5.6478, 177e-3, no, no, no, no, 177e-3}, nil},
		{"hey", "hey-0.1.3-rate.txt",
			want{58, 24, 174, 1.0793, 53.7386, 3.3e-3, 0.3e-3, 7.9e-3, no, no, 50.3e-3}, nil},
		{"hey", "hey-0.1.3-slow.txt", want{6, 5, 3, 3.031, 1.9795, 41.3e-3, no, no, no, no, 41.3e-3}, nil},
		{"hey", "hey-0.1.4-slow.txt", want{6, 3, 9, 3.2295, 1.8579, 32.4e-3, no, no, no, no, 46.5e-3}, nil},
		{"hey", "hey-0.1.5-redir.txt", want{50, 0, 150, 0.0176, 2836.48, 0.4e-3, no, no, no, no, 15.8e-3}, nil},
		{"k6", "k6-0.33.0-scenarios.txt",
			want{60, 15, 7400, no, 10100.95909, 0.19561e-3, 0.15178e-3, no, 0.82056e-3, 0.8432e-3, 0.84572e-3}, nil},
		{"k6", "k6-0.33.0.txt",
			want{50, 0, 6000, no, 49.942187, 0.53246e-3, 0.35932e-3, 0.5677e-3, no, no, 3.87e-3}, nil},
		{"k6", "k6-0.47.0-refused.txt", want{4, 4, 0, no, 839.601483, no, no, no, no, no, no}, nil},
		{"k6", "k6-0.47.0.txt",
			want{50, 0, 6000, no, 48.124038, 1.32e-3, 0.36753e-3, 0.61062e-3, no, no, 28.15e-3}, nil},
		{"k6", "k6-1.8.1-both.txt",
			want{46, 0, 5500, no, 38.95176, 4.56e-3, 0.32394e-3, 7.58e-3, no, no, 49.5e-3}, nil},
		{"k6", "k6-1.8.1-full.txt",
			want{60, 16, 7400, no, 2547.119157, 0.72119e-3, 0.14599e-3, no, 8.74e-3, 10.45e-3, 10.64e-3}, nil},
		{"k6", "k6-1.8.1-refused.txt", want{4, 4, 0, no, 47.05974, no, no, no, no, no, no}, nil},
		{"k6", "k6-1.8.1-scenarios.txt",
			want{60, 15, 7400, no, 2401.017839, 0.70637e-3, 0.12411e-3, no, 5.8e-3, 7.02e-3, 7.15e-3}, nil},
		{"k6", "k6-1.8.1-status.txt",
			want{51, 11, 6300, no, 50.94493, 0.34955e-3, 0.30794e-3, 0.40908e-3, no, no, 1.73e-3}, nil},
		{"k6", "k6-1.8.1-us.txt",
			want{49, 0, 5800, no, 48.927852, 4.85931e-3, 0.30285e-3, 29.49656e-3, no, no, 40.09227e-3}, nil},
		{"k6", "k6-1.8.1.txt",
			want{51, 0, 6100, no, 50.89361, 0.97152e-3, 0.28116e-3, 0.905e-3, no, no, 12.3e-3}, nil},
		{"redis-benchmark", "redis-benchmark-6.0.16-precision.txt",
			want{1500, no, no, 0.03, 53571.43133,
				no, no, no, no, no, no}, []string{"PING_INLINE", "PING_BULK", "MSET (10 keys)"}},
		{"redis-benchmark", "redis-benchmark-6.0.16-threads.txt",
			want{2016, no, no, no, 672000, no, no, no, no, no, no}, nil},
		{"redis-benchmark", "redis-benchmark-8.0.6-quiet.txt",
			want{no, no, no, no, 4499.434805, no, no, no, no, no, no}, []string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-8.0.6.csv",
			want{no, no, no, no, 30303.03371, 0.0365e-3, no, no, no, no, 15.727e-3}, []string{"SET", "GET"}},
		{"redis-benchmark", "redis-benchmark-8.0.6.txt",
			want{4000, no, no, 0.16, 24539.87618, 0.0595e-3, no, no, no, no, 31.599e-3}, []string{"SET", "GET"}},
		{"wrk", "wrk-4.1.0-allslow.txt", want{0, 0, 0, 1.09, 0, no, no, no, no, no, no}, nil},
		{"wrk", "wrk-4.1.0-cut.txt", want{0, 1783, 0, 1.07, 0, no, no, no, no, no, no}, nil},
		{"wrk", "wrk-4.1.0-late.txt",
			want{36, no, 4588, 3.01, 11.97, 20.78e-3, 20.48e-3, 22.2e-3, 23.37e-3, no, 23.37e-3}, nil},
		{"wrk", "wrk-4.1.0-script.txt",
			want{19061, 0, 2264924, 1.08, 17693.64, 14.13e-3, 0.041e-3, 46.97e-3, 171.24e-3, no, 188.95e-3}, nil},
		{"fortio", "fortio-1.3.1.json",
			want{186, 0, 22134, 1.087642722, 171.0120394,
				4.748214392e-3, 0.5701999512e-3, 3.057142857e-3, 141.0764217e-3, 153.9473499e-3, 155.377453e-3}, nil},
		{"oha", "oha-0.5.9-latency.txt",
			want{100, 0, 300, 1.001, 99.905, 13.7e-3, 10.5e-3, 20.3e-3, 67e-3, no, 67e-3}, nil},
		{"oha", "oha-0.5.9-refused.json", want{4, 4, 0, 0.075795008, 52.77392411, no, no, no, no, no, no}, nil},
		{"oha", "oha-0.5.9-slow.txt", want{12, 2, 30, 1.0016, 11.9814, 1.7e-3, 0.7e-3, 4.6e-3, 4.6e-3, no, 4.6e-3}, nil},
		{"oha", "oha-0.5.9-status.json",
			want{100, 24, 300, 0.147412579, 678.3681602,
				1.49937591e-3, 0.049584e-3, 0.095703e-3, 143.559192e-3, no, 143.559192e-3}, nil},
		{"oha", "oha-0.5.9-status.txt",
			want{100, 36, 300, 1.0012, 99.8768, 2e-3, 0.1e-3, 0.2e-3, 92.8e-3, no, 92.8e-3}, nil},
		{"oha", "oha-0.5.9.txt", want{300, 0, 900, 0.0104, 28786.027, 0.1e-3, no, 0.1e-3, 0.9e-3, no, 4.1e-3}, nil},
		{"oha", "oha-0.6.5-breakdown.json",
			want{100, 26, 300, 0.010249347, 9756.719135,
				0.17864527e-3, 0.065718e-3, 0.436181e-3, 1.352202e-3, 1.352202e-3, 1.352202e-3}, nil},
		{"oha", "oha-0.6.5-slow.txt",
			want{66, 23, 186, 1.0016, 65.8966, 5.7e-3, 5.5e-3, 6.6e-3, 9.3e-3, 9.3e-3, 9.3e-3}, nil},
		{"oha", "oha.json", want{400, 20, 15000, 2.0014, 200.86, 2.1e-3, 0.7e-3, 4.8e-3, 28.7e-3, 41.2e-3, 41.2e-3}, nil},
		{"oha", "oha.txt", want{400, 20, 15001.6, 2.0014, 200.86, 2.1e-3, 0.7e-3, 4.8e-3, 28.7e-3, 41.2e-3, 41.2e-3}, nil},
	} {
		r, err := Parse(c.tool, read(t, c.file))
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		c.want.bytes = math.Round(c.want.bytes)
		c.want.check(t, c.file, r.Part)
		var parts []string
		for _, p := range r.Parts {
			parts = append(parts, p.Name)
		}
		if r.Tool != c.tool || r.Label() != "by "+c.tool+"'s own clock" || r.Clock == "" || !slices.Equal(parts, c.parts) {
			t.Errorf("%s: it reads as one of %s (%s), with the parts %q", c.file, r.Tool, r.Clock, parts)
		}
		seen[c.file] = true
		outputs[c.tool]++
	}
	for _, file := range corpus(t) {
		_, err := Parse(toolOf(t, file), read(t, file))
		if says, is := refused[file]; is != (err != nil) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", file, err)
		}
		if refused[file] == "" && !seen[file] {
			t.Errorf("%s has no expected figures", file)
		}
	}
	for _, name := range Names() {
		if outputs[name] < 5 {
			t.Errorf("%s: %d outputs, want five at least", name, outputs[name])
		}
	}
}

// TestParts: the operations and jobs of one output keep their own numbers.
func TestParts(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct {
		tool, file string
		part       int
		want       want
	}{
		{"redis-benchmark", "redis-benchmark.txt", 0,
			want{2000, no, no, 1.48, 1353.18, 1.261e-3, 39e-6, no, 33.023e-3, no, 263.423e-3}},
		{"redis-benchmark", "redis-benchmark.txt", 1,
			want{2000, no, no, 0.59, 3395.59, 0.511e-3, 39e-6, no, 13.415e-3, no, 59.359e-3}},
		{"redis-benchmark", "redis-benchmark-quiet.txt", 0, want{no, no, no, no, 30303.03, no, 39e-6, no, no, no, no}},
		{"redis-benchmark", "redis-benchmark-quiet.txt", 1, want{no, no, no, no, 4962.78, no, 39e-6, no, no, no, no}},
		{"redis-benchmark", "redis-benchmark.csv", 1,
			want{no, no, no, no, 6557.38, 0.29e-3, 39e-6, no, 5.807e-3, no, 48.767e-3}},
		{"redis-benchmark", "redis-benchmark-rounds.csv", 1,
			want{no, no, no, no, 3 / (1/32786.89 + 1/23529.41 + 1/8810.57), (0.044e-3 + 0.071e-3 + 0.159e-3) / 3, no, no,
				no, no, 50.335e-3}},
		{"fio", "fio-mixed.json", 0,
			want{182, no, 745472, 1.04, 175, 4.324987588e-3, 280.576e-6, 6.651904e-3, 76.02176e-3, 102.23616e-3, 101.719478e-3}},
		{"fio", "fio-mixed.json", 1,
			want{183, no, 749568, 1.04, 175.961538, 230.487191e-6, 5.216e-6, 36.608e-6, 4.816896e-3, 32.11264e-3, 32.095077e-3}},
	} {
		r, err := Parse(c.tool, read(t, c.file))
		if c.part >= len(r.Parts) {
			t.Errorf("%s: %d parts, %v", c.file, len(r.Parts), err)
			continue
		}
		c.want.check(t, c.file+" "+r.Parts[c.part].Name, r.Parts[c.part])
	}
}

// TestWarnings: a reading has warnings about what a reader of its numbers must know.
func TestWarnings(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct{ tool, file, says string }{
		{"ab", "ab.txt", "it prints 0 for p50: below its unit"},
		{"ab", "ab-length.txt", "59 of the errors are answers of another length"},
		{"fio", "fio-error.txt", "job full failed with error 28"},
		{"ab", "ab-2.4.67-reset.txt", "75 failed at least: a request may be counted under several kinds of failures, 123"},
		{"ab", "ab-2.4.68-kinds.txt", "37 failed at least"},
		{"ab", "ab-2.4.68-kinds.txt", "does not say how many requests failed"},
		{"wrk", "wrk-4.1.0-late.txt", "18 failed at least"},
		{"wrk", "wrk-4.1.0-late.txt", "8 answers that took longer than its timeout are missing from all of its latencies"},
		{"oha", "oha-0.5.9-slow.txt", "2 requests without an answer are missing from all of its latencies"},
		{"hey", "hey-0.1.4-slow.txt", "3 requests without an answer are missing from all of its latencies"},
		{"hey", "hey-0.1.3-one.txt", "too few requests for some of its quantiles"},
		{"hey", "hey-0.1.5-redir.txt", "it prints 0 for p50, p90"},
		{"fio", "fio-3.41-stonewall.json", "may have run one after the other, so they have no rate together"},
		{"fio", "fio-3.33-sections.json", "job a stands for several that may not all have run at the same time"},
		{"fio", "fio-3.33-sections-numjobs.json", "job a stands for several"},
		{"fio", "fio-3.33-sections-mixed.json", "job a stands for several"},
		{"fio", "fio-3.25-list.json", `below "n read: clat_ns" there is no quantile that is known`},
		{"fio", "fio-3.41-lat.json", `below "n read: lat_ns" there is no quantile that is known`},
		{"k6", "k6-1.8.1-us.txt", "it dropped 1 iterations"},
		{"k6", "k6-1.8.1-both.txt", "it dropped 14 iterations"},
		{"redis-benchmark", "redis-benchmark-6.0.16-threads.txt", "it prints 0 for INCR duration"},
		{"redis-benchmark", "redis-benchmark-6.0.16-precision.txt", "shares of requests below whole steps"},
	} {
		r, err := Parse(c.tool, read(t, c.file))
		if err != nil || !strings.Contains(strings.Join(r.Warnings, "; "), c.says) {
			t.Errorf("%s: %v, %q", c.file, err, r.Warnings)
		}
	}
}

// TestTimeoutsOfWrk2: wrk2 counts idle connections as timeouts, several times each. Requests that failed are then known
// at least, even where timeouts are more than requests.
func TestTimeoutsOfWrk2(t *testing.T) {
	output := strings.Replace(string(read(t, "wrk2-calibrated.txt")), "timeout 1", "timeout 9000", 1)
	r, err := Parse("wrk2", []byte(output))
	if err != nil || r.Errors != nil || r.ErrorsAtLeast != 3 || *r.Requests != 2401 ||
		!strings.Contains(strings.Join(r.Warnings, "; "), "its 9000 timeouts are no number of requests") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestWrk2IsNotWrk: wrk and wrk2 are distinguished, because both programs are called wrk but their clocks differ.
func TestWrk2IsNotWrk(t *testing.T) {
	guest.KernelFree(t)
	for file, want := range map[string]string{
		"wrk-latency.txt": "wrk", "wrk2-latency.txt": "wrk2", "wrk2-calibrated.txt": "wrk2",
		"wrk2-plain.txt": "wrk", // nothing in it shows that it is wrk2: see Detect
	} {
		if r, err := Parse("wrk", read(t, file)); err != nil || r.Tool != want {
			t.Errorf("%s: %q, %v; want %s", file, r.Tool, err, want)
		}
	}
}

func TestDetect(t *testing.T) {
	guest.KernelFree(t)
	for line, want := range map[string]string{
		"wrk -t1 http://127.0.0.1/":          "wrk",
		"/usr/bin/wrk -t2 -R1000 http://x/":  "wrk2",
		"wrk --rate 100 http://x/":           "wrk2",
		"wrk2 http://x/":                     "wrk2",
		"taskset -c 1 chrt -f 1 fortio load": "fortio",
		"env A=1 redis-benchmark -q":         "redis-benchmark",
		"curl http://x/wrk":                  "",
		"sh -c wrk":                          "",
		"/opt/k6/bin/k6 run script.js":       "k6",
		"nice -n 5 ./ab -n 1 http://x/":      "ab",
		"":                                   "",
	} {
		if got := Detect(strings.Fields(line)); got != want {
			t.Errorf("%q is found to run %q, want %q", line, got, want)
		}
	}
}

// TestBadOutput: an output that is incomplete or not the tool's is an error that says what to do, never a Reading with
// gaps.
func TestBadOutput(t *testing.T) {
	guest.KernelFree(t)
	cut := func(file string, part float64) string {
		b := read(t, file)
		return string(b[:int(part*float64(len(b)))])
	}
	for _, c := range []struct{ name, tool, output, says string }{
		{"nothing", "wrk", " \n", "it printed nothing"},
		{"unknown tool", "siege", "x", `the output of "siege" cannot be read, only that of ab, fio`},
		{"too long", "wrk", strings.Repeat("x", MaxBytes+1), "longer than 4194304 bytes"},
		{"wrk, its usage", "wrk", "Usage: wrk <options> <url>\n", "its last lines are missing"},
		{"wrk, cut off", "wrk", cut("wrk-latency.txt", 0.8), "its last lines are missing"},
		{"wrk, another's", "wrk", string(read(t, "hey.txt")), "its last lines are missing"},
		{"wrk, endless count", "wrk", "  99999999999999999999 requests in 1.00s, 1.00KB read\nRequests/sec: 1\n",
			"is not a count"},
		{"wrk, a size without unit", "wrk", "  9 requests in 1.00s, 1.00XB read\nRequests/sec: 1\n", `unknown unit "XB"`},
		{"wrk, not a number", "wrk", "  9 requests in 1.00s, 1.00KB read\nRequests/sec: inf\n",
			"not a number that can have been measured"},
		{"hey, cut off", "hey", cut("hey.txt", 0.6), "distribution of status codes at its end, is missing"},
		{"hey, one line a request", "hey", string(read(t, "hey-requests.csv")), "leave out -o csv"},
		{"hey, one line a request after others", "hey", "warm\n" + string(read(t, "hey-requests.csv")), "leave out -o csv"},
		{"ab, cut off", "ab", cut("ab.txt", 0.3), `no "Complete requests"`},
		{"ab, cut off later", "ab", cut("ab.txt", 0.9), "its distribution at the end is missing"},
		{"fortio, text", "fortio", "All done 100 calls\n", "run it with -json -"},
		{"fortio, cut off", "fortio", cut("fortio.json", 0.9), "was cut off"},
		{"fortio, another's JSON", "fortio", string(read(t, "oha.json")), "no DurationHistogram"},
		{"fortio, negative", "fortio", `{"ActualQPS":-1,"DurationHistogram":{"Count":1}}`, "its rate is -1"},
		{"redis, cut off", "redis-benchmark", cut("redis-benchmark.txt", 0.7), "the summary of GET is missing"},
		{"redis, lines without headings", "redis-benchmark", "====== A ======\nSummary:\n1 2 3 4 5 6\n",
			"the summary of A is missing"},
		{"redis, a table of two columns", "redis-benchmark", "\"test\",\"rps\"\n\"SET\",\"x\"\n",
			"not a number that can have been measured"},
		{"redis, a table without its header", "redis-benchmark",
			"\"SET\",\"1000.00\",\"0.5\",\"0.1\",\"0.4\",\"0.6\",\"0.8\",\"9.1\"\n", "the header of the table is missing"},
		{"redis, an old row that was cut off", "redis-benchmark", "\"SET\",\"1000.00\"\n\"GET\",\"99", "was cut off"},
		{"redis, refused", "redis-benchmark", "Could not connect to Redis at 127.0.0.1:1: Connection refused\n",
			`no line "requests per second"`},
		{"redis, a broken table", "redis-benchmark", "\"test\",\"rps\"\n\"SET\"\n", "its table is broken"},
		{"fio, text", "fio", string(read(t, "fio-text.txt")), "run it with --output-format=json"},
		{"fio, cut off", "fio", cut("fio-mixed.json", 0.5), "was cut off"},
		{"fio, no I/O", "fio", `{"fio version":"fio-3.41","jobs":[{"jobname":"a","error":2}]}`,
			"none of its jobs did any I/O: job a failed with error 2"},
		{"fio, no version", "fio", replaced(t, "fio-3.41.json", `"fio version"`, `"version"`), "in which units"},
		{"fio, huge", "fio", `{"jobs":[{"read":{"total_ios":1e30}}]}`, "its JSON is broken"},
		{"k6, no requests", "k6", "iterations: 5\n", "no http_reqs"},
		{"k6, cut off", "k6", cut("k6-export.json", 0.5), "was cut off"},
		{"oha, cut off", "oha", cut("oha.json", 0.5), "was cut off"},
		{"oha, another's JSON", "oha", string(read(t, "fortio.json")), "no summary.requestsPerSec"},
		{"oha, negative", "oha", `{"summary":{"requestsPerSec":1},"statusCodeDistribution":{"200":-4},` +
			`"errorDistribution":{}}`, "not a number of responses"},
	} {
		r, err := Parse(c.tool, []byte(c.output))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%s: the message has %d bytes", c.name, len(err.Error()))
		}
		if r.Requests != nil || r.Rate != nil {
			t.Errorf("%s: it is read all the same: %+v", c.name, r)
		}
	}
}

// TestSeveral: an output with the results of two runs is refused. Rounds of redis-benchmark are combined, with a
// warning.
func TestSeveral(t *testing.T) {
	guest.KernelFree(t)
	tried := map[string]int{}
	for _, name := range Names() {
		for _, file := range corpus(t) {
			if toolOf(t, file) != name {
				continue
			}
			one := read(t, file)
			if _, err := Parse(name, one); err != nil {
				continue // the output is refused even alone
			}
			tried[name]++
			for _, between := range []string{"", "now the measured one\n", `{"level":"info"}` + "\n"} {
				two := slices.Concat(one, []byte("\n"+between), one)
				r, err := Parse(name, two)
				switch {
				case name == "redis-benchmark":
					if err != nil || len(r.Warnings) < 2 ||
						!strings.Contains(strings.Join(r.Warnings, "; "), "put together") {
						t.Errorf("%s, twice: %v, %q", file, err, r.Warnings)
					}
				case !errors.Is(err, errSeveral):
					t.Errorf("%s, twice: %v", file, err)
				}
			}
			// Other text before and after the output changes nothing.
			want, _ := Parse(name, one)
			for _, more := range []string{"warming up\n", `{"level":"info"}` + "\n"} {
				if r, err := Parse(name, slices.Concat([]byte(more), one, []byte("\n"+more))); err != nil ||
					!reflect.DeepEqual(r, want) {
					t.Errorf("%s between lines of %q: %v, %+v", file, more, err, r)
				}
			}
		}
	}
	for _, name := range Names() {
		if tried[name] == 0 {
			t.Errorf("%s: nothing was tried", name)
		}
	}
}

// TestOtherDigits: if numbers have a decimal comma, as in German, or separators between thousands, the values are the
// same as before, or the output is refused, or a warning names what is not read.
func TestOtherDigits(t *testing.T) {
	guest.KernelFree(t)
	decimal, thousand := regexp.MustCompile(`[0-9]\.[0-9]`), regexp.MustCompile(`[0-9][0-9]{3}\b`)
	member := regexp.MustCompile(`^ *"[^"]*" *:`) // a member of a JSON object; such numbers make JSON invalid
	digits := regexp.MustCompile(`[0-9]+`)
	tried := 0
	for _, file := range corpus(t) {
		shapes := map[string]bool{} // lines without their digits
		tool, output := toolOf(t, file), string(read(t, file))
		was, err := Parse(tool, []byte(output))
		if err != nil {
			continue
		}
		at := 0
		for line := range strings.Lines(output) {
			begin := at
			at += len(line)
			if shape := digits.ReplaceAllString(line, "0"); len(line) > 300 || member.MatchString(line) || shapes[shape] {
				continue
			} else {
				shapes[shape] = true
			}
			change := func(from, to int, by string) {
				tried++
				now, err := Parse(tool, []byte(output[:begin+from]+by+output[begin+to:]))
				if err != nil || !slices.Equal(now.Warnings, was.Warnings) {
					return
				}
				if !reflect.DeepEqual(now.Part, was.Part) || !reflect.DeepEqual(now.Parts, was.Parts) {
					t.Errorf("%s: %q with %q reads as %+v", file, strings.TrimSpace(line), by, now.Part)
				}
			}
			for _, found := range decimal.FindAllStringIndex(line, -1) {
				change(found[0]+1, found[1]-1, ",")
			}
			for _, found := range thousand.FindAllStringIndex(line, -1) {
				for _, by := range []string{",", "'", " ", "\u202f"} {
					change(found[0]+1, found[0]+1, by)
				}
			}
		}
	}
	if tried < 1000 {
		t.Errorf("only %d changes were tried", tried)
	}
}

// TestByteOrderMark: a byte order mark at the beginning of an output changes nothing.
func TestByteOrderMark(t *testing.T) {
	guest.KernelFree(t)
	for tool, file := range map[string]string{"redis-benchmark": "redis-benchmark.csv", "fio": "fio-3.41.json",
		"fortio": "fortio.json", "hey": "hey.txt", "k6": "k6-export.json"} {
		want, err := Parse(tool, read(t, file))
		got, marked := Parse(tool, append([]byte("\ufeff"), read(t, file)...))
		if err != nil || marked != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v: %+v, want %+v", tool, err, marked, got, want)
		}
	}
}

// replaced returns a file of testdata with some of its words replaced.
func replaced(t testing.TB, file string, pairs ...string) string {
	t.Helper()
	text := string(read(t, file))
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%s has no %q", file, pairs[i])
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// TestDoubt: a value that cannot be read with certainty is absent, and a warning says so.
func TestDoubt(t *testing.T) {
	guest.KernelFree(t)
	all := func(Reading) bool { return true }
	noQuantiles := func(r Reading) bool { return r.P50 == nil && r.P99 == nil && r.Rate != nil }
	for _, c := range []struct {
		name, tool, output, says string
		right                    func(Reading) bool
	}{
		{"wrk, lines of another version", "wrk", replaced(t, "wrk-latency.txt", "50%", "50 pct", "75%", "75 pct", "90%",
			"90 pct", "99%", "99 pct"), `below "Latency Distribution"`, noQuantiles},
		{"hey, lines of another version", "hey", strings.ReplaceAll(string(read(t, "hey.txt")), "% in", "%: "),
			`below "Latency distribution:"`, noQuantiles},
		{"k6, statistics of other names", "k6", strings.NewReplacer("avg=", "mean=", "med=", "mid=", "max=", "top=", "p(",
			"q(").Replace(string(read(t, "k6.txt"))), `below "http_req_duration"`, noQuantiles},
		{"quantiles that fall", "hey", replaced(t, "hey.txt", "99% in 0.1339", "99% in 0.0001"), "is above its p99",
			func(r Reading) bool { return r.P99 == nil && r.P90 == nil && r.Max != nil }},
		{"a quantile above the maximum", "fortio", replaced(t, "fortio.json", `"Max": 0.094467209`, `"Max": 0.05`),
			"is above its maximum", func(r Reading) bool { return r.Max == nil && r.P999 == nil && r.P90 != nil }},
		{"a mean above the maximum", "wrk",
			replaced(t, "wrk-latency.txt", "  8.73ms", "98.73ms"), "its mean, 0.09873 s, is above its maximum",
			func(r Reading) bool { return r.Mean == nil && r.Max == nil && r.P99 != nil }},
		{"hey, more answers than it keeps", "hey", replaced(t, "hey.txt", "120.2449", "1300000", "121 resp", "1000000 resp"),
			"only its rate is read", func(r Reading) bool {
				return *r.Rate == 1300000 && r.Requests == nil && r.Errors == nil && r.P50 == nil && r.Mean == nil && r.Max == nil
			}},
		{"hey, more failures than it keeps", "hey", replaced(t, "hey-status.txt", "532.5993", "5325993", "107 resp",
			"999907 resp"), "only its rate is read", func(r Reading) bool { return r.Errors == nil && r.ErrorsAtLeast == 93 }},
		{"a mean in another unit", "hey", replaced(t, "hey.txt", "0.0062 secs", "0.0000062 secs"), "is too small for its p90",
			func(r Reading) bool { return r.Mean == nil && r.P90 == nil && r.P50 == nil && r.Max != nil }},
		{"ab counts what it could not write apart", "ab", replaced(t, "ab.txt", "Failed requests:        0\n",
			"Failed requests:        0\nWrite errors:           7\n"), "", func(r Reading) bool { return *r.Errors == 7 }},
		{"wrk counts broken connections apart", "wrk", replaced(t, "wrk-latency.txt", "requests in",
			"requests in", "Requests/sec", "  Socket errors: connect 100, read 7, write 1, timeout 0\nRequests/sec"), "",
			func(r Reading) bool { return *r.Errors == 108 && r.Beside == 108 && *r.Requests == 1492 }},
		{"redis-benchmark, commands with more and fewer requests", "redis-benchmark",
			replaced(t, "redis-benchmark.txt", "2000 requests completed in 1.48", "6000 requests completed in 4.44"), "",
			func(r Reading) bool { return math.Abs(*r.Mean-(3*1.261e-3+0.511e-3)/4) < 1e-9 }},
		{"fio, a percentile of another locale", "fio", replaced(t, "fio-3.39-plus.json", `"99.000000" :`, `"99,000000" :`),
			`the line "99,000000" is not known`, func(r Reading) bool { return r.P99 == nil && r.P50 != nil }},
		{"wrk, quantiles below another heading", "wrk", replaced(t, "wrk-latency.txt", "Latency Distribution", "Quantiles"),
			`below "no heading"`, noQuantiles},
		{"wrk, another line of latencies", "wrk", replaced(t, "wrk-plain.txt", "86.50%", ""), `below "Thread Stats"`,
			func(r Reading) bool { return r.Mean == nil && r.Max == nil }},
		{"hey, quantiles below another heading", "hey", replaced(t, "hey.txt", "Latency distribution:", "Quantiles:"),
			`below "Quantiles:"`, noQuantiles},
		{"fio, a job that began later", "fio", strings.Replace(string(read(t, "fio-jobs.json")), `"jobname" : "write",`,
			`"jobname" : "write", "job_start" : 1795750071806,`, 1), "did not all run at the same time",
			func(r Reading) bool { return r.Rate == nil && *r.Requests == 196 && r.Parts[0].Rate != nil }},
		{"a rate of another run", "ab", replaced(t, "ab.txt", "525.31", "5253.1"), "none of the three is read",
			func(r Reading) bool { return r.Rate == nil && r.Requests == nil && r.P99 != nil }},
		{"hey, a quantile with two values", "hey", replaced(t, "hey.txt", "  50% in", "  50% in 0.0050 secs\n  50% in"),
			"more than one value of p50", func(r Reading) bool { return r.P50 == nil && r.P99 != nil }},
		{"fio, a percentile with two values", "fio", replaced(t, "fio-3.39-plus.json", `"99.000000" :`,
			`"99.0" : 1, "99.000000" :`), "p99: none is read", func(r Reading) bool { return r.P99 == nil && r.P50 != nil }},
		{"redis-benchmark counts no failures", "redis-benchmark", string(read(t, "redis-benchmark-one.txt")),
			"does not say how many requests failed", all},
		{"redis-benchmark, a line before the table", "redis-benchmark",
			"WARNING: -e option has been deprecated.\n" + string(read(t, "redis-benchmark.csv")),
			"does not say how many requests failed", func(r Reading) bool { return len(r.Parts) == 2 }},
		{"redis-benchmark, lines of another version", "redis-benchmark",
			replaced(t, "redis-benchmark-one.txt", "% <= ", "% at "), `below "GET: Latency by percentile distribution"`, all},
		{"redis-benchmark, columns of other names", "redis-benchmark",
			replaced(t, "redis-benchmark.csv", "_latency_ms", "_ms"),
			`below "test,rps,avg_ms`, noQuantiles},
		{"redis-benchmark, a short run", "redis-benchmark",
			replaced(t, "redis-benchmark-one.txt", "in 0.87 seconds", "in 0.02 seconds", "2296.21", "80321.28"),
			"does not say how many requests failed", func(r Reading) bool { return r.Rate != nil && *r.Requests == 2000 }},
		{"oha, quantiles of other names", "oha", replaced(t, "oha-1.15.0.json", `"p50"`, `"q50"`, `"p90"`, `"q90"`, `"p99"`,
			`"q99"`, `"p99.9"`, `"q99.9"`), `below "latencyPercentiles"`, noQuantiles},
		{"k6's JSON, statistics of other names", "k6", replaced(t, "k6-export.json", `"avg"`, `"mean"`, `"med"`, `"mid"`,
			`"max"`, `"top"`, `"p(`, `"q(`), `below "http_req_duration"`, noQuantiles},
		{"fortio, other kinds of codes", "fortio", replaced(t, "fortio.json", "ErrorsDurationHistogram", "X", `"200"`, `"OK"`),
			"does not say how many requests failed", all},
	} {
		r, err := Parse(c.tool, []byte(c.output))
		if err != nil || !strings.Contains(strings.Join(r.Warnings, "; "), c.says) || !c.right(r) {
			t.Errorf("%s: %v, %+v", c.name, err, r)
		}
	}
}

// TestRefused: an output that contradicts itself, or has counts under unknown names, is refused.
func TestRefused(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct{ name, tool, output, says string }{
		{"hey, failures below another heading", "hey",
			replaced(t, "hey-0.1.3-slow.txt", "Error distribution:", "Failures:"), `below "Failures:" there are counts`},
		{"hey, one status twice", "hey", replaced(t, "hey-0.1.5-status.txt", "Status code distribution:\n",
			"Status code distribution:\n  [200]\t7 responses\n"), "more than one run"},
		{"wrk, failures twice", "wrk", replaced(t, "wrk-status.txt", "Requests/sec",
			"  Non-2xx or 3xx responses: 7\nRequests/sec"), "more than one run"},
		{"oha's text as hey's", "hey", string(read(t, "oha-1.15.0.txt")), "write tool: oha"},
		{"hey's text as oha's", "oha", string(read(t, "hey-0.1.5.txt")), "write tool: hey"},
		{"ab, figures in another unit", "ab", replaced(t, "ab.txt", "[ms] (mean)\n", "[us] (mean)\n"), `has "[us] (mean)" after`},
		{"ab, other kinds of failures", "ab", replaced(t, "ab-length.txt", "Exceptions: 0)", "Exceptions: 0, TLS: 4)"),
			"unknown kinds of failed requests"},
		{"ab, another locale", "ab", replaced(t, "ab.txt", "525.31", "525,31"), `"525,31" is not a number`},
		{"more failures than requests", "wrk", replaced(t, "wrk-status.txt", "responses: 965", "responses: 9650"),
			"its 9650 errors are more than its 1955 requests"},
		{"k6, another locale", "k6", replaced(t, "k6.txt", "med=686.4µs", "med=686,4µs"), "is not a time"},
		{"redis-benchmark, another locale", "redis-benchmark",
			replaced(t, "redis-benchmark-6.0.16-quiet.txt", "25974.03", "25974,03"), "is no operation with its rate"},
		{"redis-benchmark, two results below one heading", "redis-benchmark",
			replaced(t, "redis-benchmark-6.0.16-precision.txt", "====== PING_BULK ======", "PING_BULK"), "two results"},
		{"fortio, a histogram without its count", "fortio",
			replaced(t, "fortio-1.67.1-tcp.json", `"Count": 100,`, `"Counted": 100,`), "no DurationHistogram.Count"},
		{"fortio, a key twice", "fortio", replaced(t, "fortio.json", `"ActualQPS":`, `"ActualQPS": 7, "ActualQPS":`),
			`"ActualQPS" twice`},
		{"oha, a key twice but for its case", "oha", replaced(t, "oha-1.15.0.json", `"requestsPerSec":`,
			`"RequestsPerSec": 7, "requestsPerSec":`), `"requestsPerSec" twice`},
		{"fio, a negative latency", "fio", replaced(t, "fio-3.39-plus.json", `"99.000000" :`, `"99.000000" : -1, "98.5" :`),
			"its p99 is -"},
		{"redis-benchmark, two rates below one heading", "redis-benchmark", replaced(t, "redis-benchmark-one.txt",
			"throughput summary: 2296.21 requests per second",
			"throughput summary: 2.21 requests per second\n  throughput summary: 2296.21 requests per second"), "two rates"},
		{"fio, operations by another name", "fio", replaced(t, "fio-3.25.json", `"total_ios" : 200`, `"ios" : 200`),
			"of job mixed, read has no total_ios"},
		{"oha, an error that is not known", "oha", replaced(t, "oha-0.6.5-slow.txt", "[4] timeout", "[3] timeout"),
			"62 answers and 3 errors do not match its success rate of 93.94 %"},
		{"oha, errors that are not in its JSON", "oha", replaced(t, "oha-0.5.9-status.json", `"successRate": 1.0`,
			`"successRate": 0.5`), "do not match its success rate of"},
		{"oha, failures by another name", "oha", replaced(t, "oha-0.6.5-breakdown.json", "errorDistribution", "errors"),
			"no errorDistribution"},
		{"wrk, failures by another name", "wrk", replaced(t, "wrk-status.txt", "Non-2xx or 3xx responses", "Bad responses"),
			"may count failures"},
		{"wrk, one more kind of broken connections", "wrk", replaced(t, "wrk-timeout.txt", "timeout 2", "timeout 2, tls 3"),
			"may count failures"},
		{"ab, failures by another name", "ab", replaced(t, "ab-status.txt", "Non-2xx responses", "Failed answers"),
			"may count failures"},
		{"ab, failures that are not those of their kinds", "ab", replaced(t, "ab-length.txt", "Length: 59", "Length: 5"),
			"it counts 59 failures, and 5 by their kinds"},
		{"fortio, failures that are not those of its codes", "fortio",
			replaced(t, "fortio.json", `"200": 200`, `"200": 100, "503": 100`), "it counts 0 failures, and 100 by the codes"},
		{"k6, failures that are not their share", "k6", replaced(t, "k6-1.8.1-status.txt", "21.56%", "0.00%"),
			"its 11 failures of 51 requests do not match its 0 %"},
	} {
		if r, err := Parse(c.tool, []byte(c.output)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %+v", c.name, err, r)
		}
	}
	mixed, err := Parse("fio", read(t, "fio-3.33-sections-mixed.json"))
	if err != nil || mixed.Rate != nil || mixed.Parts[0].Rate != nil || *mixed.Parts[0].Requests != 201 {
		t.Errorf("fio divides what two sections read one after the other by the time of one: %v, %+v", err, mixed)
	}
	// The totals count, even if they come after the scenarios.
	output := replaced(t, "k6-1.8.1-full.txt")
	at := strings.Index(output, "  █ TOTAL RESULTS")
	to := strings.Index(output, "  █ SCENARIO: one")
	output = output[:at] + output[to:] + "\n" + output[at:to]
	if r, err := Parse("k6", []byte(output)); err != nil || *r.Requests != 60 || *r.Errors != 16 {
		t.Errorf("k6, its totals last: %v, %+v", err, r)
	}
}

// TestOtherVersions: output that other versions write in another form is parsed correctly or refused.
func TestOtherVersions(t *testing.T) {
	guest.KernelFree(t)
	hey := strings.ReplaceAll(string(read(t, "hey.txt")), "% in", "%% in") // as hey's development branch prints them
	if r, err := Parse("hey", []byte(hey)); err != nil || r.P99 == nil || *r.P99 != 0.1339 || len(r.Warnings) > 0 {
		t.Errorf("hey: %v, %+v", err, r)
	}
	oha := strings.ReplaceAll(string(read(t, "oha.txt")), "Response time distribution:", "Latency distribution:")
	as, _ := Parse("oha", read(t, "oha.txt"))
	if r, err := Parse("oha", []byte(oha)); err != nil || r.P99 == nil || *r.P99 != 28.7e-3 ||
		!slices.Equal(r.Warnings, as.Warnings) {
		t.Errorf("oha before 0.5.9: %v, %+v", err, r)
	}
	const fortio = `{"Version":"1.3.1","ActualQPS":1000,"ActualDuration":3000000000,"DurationHistogram":{"Count":3000},` +
		`"RetCodes":{"200":1750,"418":50,"503":1100,"-1":100}}`
	if r, err := Parse("fortio", []byte(fortio)); err != nil || r.Errors == nil || *r.Errors != 1200 {
		t.Errorf("fortio before 1.22: %v, %+v", err, r)
	}
	for _, version := range []string{"fio-2.15", "fio-4.0", "3"} {
		output := strings.ReplaceAll(string(read(t, "fio-mixed.json")), "fio-3.33", version)
		if _, err := Parse("fio", []byte(output)); err == nil || !strings.Contains(err.Error(), "of version "+version) {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// silent returns a heading of quantiles in the text of a tool that no known line follows; empty if there is none.
func silent(r Reading, printed string) string {
	known, isHeading := heyQuantile(), func(line string) bool { return slices.Contains(heyDistributions, line) }
	switch r.Tool {
	case "wrk", "wrk2":
		known, isHeading = wrkQuantile(), func(line string) bool {
			return strings.HasPrefix(line, "  "+wrkDistribution) && !strings.Contains(line, "Uncorrected")
		}
	case "hey", "oha":
		if r.Errors == nil || r.Requests == nil || *r.Errors == *r.Requests || !heySummary().MatchString(printed) {
			return "" // nothing may have been answered, or it is JSON
		}
	case "redis-benchmark":
		if redisHeader().MatchString(printed) {
			return ""
		}
		titled := false
		known, isHeading = redisQuantile(), func(line string) bool {
			titled = titled || redisTitle().MatchString(line)
			return titled && line == redisDistribution+":"
		}
	default:
		return ""
	}
	heading := ""
	for line := range strings.Lines(printed) {
		line = strings.TrimRight(line, "\r\n ")
		if r.Tool == "redis-benchmark" {
			line = latest(line)
		}
		if isHeading(line) {
			heading = strings.TrimSuffix(strings.TrimSpace(line), ":")
		} else if known.MatchString(line) {
			return ""
		}
	}
	if strings.HasPrefix(r.Tool, "wrk") && heading != "" {
		return wrkDistribution
	}
	return heading
}

// contradictions fails the test if a part has values that contradict each other, so that at least one is wrong.
func contradictions(t *testing.T, p Part, grain float64, left int64) {
	t.Helper()
	ladder := []*float64{p.P50, p.P90, p.P99, p.P999, p.Max}
	for i, low := range ladder {
		for _, high := range ladder[i+1:] {
			if low != nil && high != nil && *low > *high*(1+grain) {
				t.Errorf("quantiles fall from %g to %g", *low, *high)
			}
		}
	}
	if p.Requests != nil && p.Seconds != nil && p.Rate != nil && *p.Seconds > 0 {
		made, rated := float64(*p.Requests+left), *p.Rate**p.Seconds
		if math.Abs(made-rated) > 10+0.1*max(made, rated)+0.005**p.Rate {
			t.Errorf("%d requests in %g s are not %g per second", *p.Requests, *p.Seconds, *p.Rate)
		}
	}
}

// FuzzParse: any output gives a Reading whose numbers a run can have, or an error.
func FuzzParse(f *testing.F) {
	for _, file := range corpus(f) {
		f.Add(uint8(slices.Index(Names(), toolOf(f, file))), read(f, file))
	}
	f.Fuzz(func(t *testing.T, tool uint8, output []byte) {
		name := Names()[int(tool)%len(Names())]
		r, err := Parse(name, output)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
			return
		}
		void := strings.Contains(strings.Join(r.Warnings, "\n"), "none of the three is read")
		if err := r.check(); err != nil && !void {
			t.Error(err)
		}
		if r.Errors == nil && len(r.Warnings) == 0 {
			t.Error("nothing is said of failures")
		}
		if 2*len(output) < MaxBytes {
			two, err := Parse(name, slices.Concat(output, []byte("\n"), output))
			said := strings.Contains(strings.Join(two.Warnings, "\n"), "put together") // of rounds of redis-benchmark
			if err == nil && !said {
				t.Error("its results, twice, are read as one")
			}
		}
		printed := colours().ReplaceAllString(string(output), "")
		at, _ := find(r.Tool)
		if result := tools[at].result; result != nil && len(result().FindAllStringIndex(printed, -1)) > 1 {
			t.Error("two results are read as one")
		}
		if heading := silent(r, printed); heading != "" && !strings.Contains(strings.Join(r.Warnings, "\n"), heading) {
			t.Errorf("no line below %q is known, and nothing says so", heading)
		}
		if len(r.Parts) == 0 {
			contradictions(t, r.Part, tools[at].grain, r.left)
		}
		for _, p := range r.Parts {
			contradictions(t, p, tools[at].grain, 0)
		}
		for _, p := range append([]Part{r.Part}, r.Parts...) {
			if p.untimed() {
				t.Error("its requests took no time")
			}
			for _, q := range []*float64{p.Mean, p.P50, p.P90, p.P99, p.P999, p.Max} {
				if q != nil && *q == 0 {
					t.Error("a latency is 0")
				}
			}
		}
	})
}
