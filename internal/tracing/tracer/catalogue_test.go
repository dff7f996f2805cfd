package tracer

import (
	"slices"
	"strings"
	"testing"

	cmdline "tare/internal/experiment/process"
	"tare/internal/lib/fault"
)

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		line string
		want []string
	}{
		{"", nil},
		{"  a\tb  c ", []string{"a", "b", "c"}},
		{`a 'b c' "d e" f\ g`, []string{"a", "b c", "d e", "f g"}},
		{`a"b"'c'd`, []string{"abcd"}},
		{`a '' ""`, []string{"a", "", ""}},
		{`'a\b' "a\b" "a\"b" "a\\b"`, []string{`a\b`, `a\b`, `a"b`, `a\b`}},
		{`bpftrace -e 'tracepoint:x { printf("%d\n", pid); }'`,
			[]string{"bpftrace", "-e", `tracepoint:x { printf("%d\n", pid); }`}},
	} {
		if got, err := cmdline.Words(c.line); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.line, got, err, c.want)
		}
	}
	for _, line := range []string{`a 'b`, `a "b`, `a\`} {
		if _, err := cmdline.Words(line); err == nil {
			t.Errorf("%s is taken for words", line)
		}
	}
}

func TestCatalogue(t *testing.T) {
	for _, e := range Catalogue {
		o := map[string]string{}
		if e.Name == "command" {
			o = map[string]string{"command": "cat", "lines": ""}
		}
		tr, err := e.Make(o)
		if err != nil {
			t.Errorf("%s: %v", e.Name, err)
			continue
		}
		if len(tr.Argv) == 0 || tr.Stop == 0 || tr.StopTime == 0 || tr.Scope == "" || e.Summary == "" {
			t.Errorf("%s is not whole: %+v", e.Name, tr)
		}
		for _, text := range slices.Concat(tr.Argv, tr.Env, []string{tr.Files["rules.yaml"], tr.Files["falco.yaml"]}) {
			if err := cmdline.CheckPlaceholders(text, placeholders); err != nil {
				t.Errorf("%s: %v", e.Name, err)
			}
		}
	}
	if Lookup("exectrace") == nil || Lookup("nothing") != nil {
		t.Error("Lookup does not find what there is, or finds what there is not")
	}
}

func TestSettings(t *testing.T) {
	argv := func(name string, o map[string]string) string {
		tr, err := Lookup(name).Make(o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		line := strings.Join(append(tr.Env, tr.Argv...), " ")
		filled, err := cmdline.Place{Self: "tare", CgroupDir: "/c", CgroupID: 9, Dir: "/d", Port: 80}.Fill(line)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return filled
	}
	for _, c := range []struct {
		name string
		o    map[string]string
		want string
	}{
		{"exectrace", nil, "tare subject exectrace --cgroup=/c"},
		{"exectrace", map[string]string{"output": "count", "ring": "65536", "args": "0", "latency": "1ms", "drain": "3s"},
			"tare subject exectrace --cgroup=/c --output=count --ring=65536 --args=0 --latency=1ms"},
		{"bpftrace", map[string]string{"pages": "4", "args": "32"},
			"BPFTRACE_PERF_RB_PAGES=4 bpftrace -e tracepoint:sched:sched_process_exec /cgroup == 9/ {"},
		{"bpftrace", map[string]string{"args": "128"}, "BPFTRACE_STRLEN=128 bpftrace"},
		{"ig", nil, "ig run trace_exec:latest --host --output=json"},
		{"ig", map[string]string{"image": "my/gadget"}, "ig run my/gadget --host"},
		{"ig", map[string]string{"verify-image": "false", "pull": "never"},
			"--output=json --verify-image=false --pull=never"},
		{"tetragon", map[string]string{"lib": "/l"}, "--bpf-lib=/l"},
		{"tetragon", nil, "--metrics-server=127.0.0.1:80"},
		{"falco", nil, "falco -c /d/falco.yaml"},
		{"command", map[string]string{"command": `mine --pid "{cgroup_id}" {unknown_thing}`, "json": "a.b"},
			"mine --pid 9 {unknown_thing}"},
	} {
		if got := argv(c.name, c.o); !strings.Contains(got, c.want) {
			t.Errorf("%s with %v: %s, want %s", c.name, c.o, got, c.want)
		}
	}
}

func TestSettingsThatAreWrong(t *testing.T) {
	for _, c := range []struct {
		o    map[string]string
		says string
	}{
		{map[string]string{"lines": ""}, `needs a "command"`},
		{map[string]string{"command": "  ", "lines": ""}, `needs a "command"`},
		{map[string]string{"command": "a 'b", "lines": ""}, `has a "command" that has an unclosed '`},
		{map[string]string{"command": "a {cgroup_dri}", "lines": ""},
			"{cgroup_dri}, which is not a placeholder; did you mean {cgroup_dir}?"},
		{map[string]string{"command": "a"}, `give one of "lines", "json" and "prometheus"`},
		{map[string]string{"command": "a", "lines": "x", "json": "a"},
			`has "lines" and "json": one thing is counted in one way`},
		{map[string]string{"command": "a", "lines": "(x"}, `has a "lines" that is not a regular expression`},
		{map[string]string{"command": "a", "json": "a..b"}, `has a "json" that is not a path`},
		{map[string]string{"command": "a", "prometheus": "a{b", "url": "http://x"},
			`has a "prometheus" that does not end with its labels`},
		{map[string]string{"command": "a", "prometheus": "a{b}", "url": "http://x"},
			`has a "prometheus" that has labels that cannot be read`},
		{map[string]string{"command": "a", "prometheus": "a"}, `needs a "url"`},
		{map[string]string{"command": "a", "lines": "", "url": "http://x"},
			`has a "url", and nothing is counted by a metric`},
		{map[string]string{"command": "a", "lines": "", "lost-lines": "lost"}, `"lost-lines" that must have one group`},
		{map[string]string{"command": "a", "lines": "", "lost-json": "a", "lost-lines": "(x)"},
			`has "lost-lines" and "lost-json"`},
		{map[string]string{"command": "a", "lines": "", "lost-stream": "stdout"},
			`has a "lost-stream", and nothing is counted there`},
		{map[string]string{"command": "a", "prometheus": "a", "url": "http://x", "stream": "stderr"},
			`has "stream" and "prometheus": a metric is on no output`},
		{map[string]string{"command": "a", "lines": "", "lost-prometheus": "a", "url": "http://x", "lost-stream": "stdout"},
			`has "lost-stream" and "lost-prometheus": a metric is on no output`},
		{map[string]string{"command": "a", "lines": "", "ready": "["}, `has a "ready" that is not a regular expression`},
		{map[string]string{"command": "a", "lines": "", "version": `a "`}, `has a "version" that has an unclosed "`},
		{map[string]string{"ring": "65537"}, "must be a power of two"},
		{map[string]string{"ring": "32768"}, "must be a power of two from 64KiB"},
	} {
		make := ofCommand
		if c.o["ring"] != "" {
			make = ownTracer
		}
		if _, err := make(c.o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %s", c.o, err, c.says)
		}
	}
}

func TestInstalledAndVersion(t *testing.T) {
	tr := &Tracer{Argv: []string{"no-such-tracer-anywhere"}, Install: "build it"}
	if err := tr.Installed(); fault.CodeOf(err) != fault.Machine || fault.HintOf(err) != "build it" ||
		!strings.Contains(err.Error(), "not installed") {
		t.Errorf("one that is not there: %v", err)
	}
	tr = &Tracer{Argv: []string{"sh"}, Version: []string{"sh", "-c", `printf '\n \033[1m v1.2 \nmore\n'; exit 1`}}
	if err := tr.Installed(); err != nil {
		t.Error(err)
	}
	if v := tr.VersionText(t.Context()); v != "[1m v1.2" {
		t.Errorf("its version is %q", v)
	}
	if v := (&Tracer{}).VersionText(t.Context()); v != "" {
		t.Errorf("one that has none says %q", v)
	}
}
