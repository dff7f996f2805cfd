package quantity

import (
	"math"
	"testing"
)

func TestUnitOfAndLabel(t *testing.T) {
	for _, c := range []struct{ metric, unit, label string }{
		{"latency_p50_seconds", Seconds, "latency p50"},
		{"latency_p999_seconds", Seconds, "latency p99.9"},
		{"throughput_per_second", PerSecond, "throughput per second"},
		{"bpf_seconds_per_connection", "seconds per connection", "eBPF per connection"},
		{"cpu_seconds_per_kiloevent", "seconds per kiloevent", "CPU per kiloevent"},
		{"bytes_per_service", "bytes per service", "bytes per service"},
		{"memory_hard_bytes", Bytes, "memory hard"},
		{"map_bytes", Bytes, "map bytes"},
		{"start_seconds", Seconds, "start time"},
		{"cpu_seconds", Seconds, "CPU time"},
		{"bpf_client_share", Part, "eBPF client share"},
		{"events_lost", Count, "events lost"},
		{"", Count, ""},
		{"seconds", Seconds, "seconds"},
	} {
		if got := UnitOf(c.metric); got != c.unit {
			t.Errorf("UnitOf(%q) = %q, want %q", c.metric, got, c.unit)
		}
		if got := Label(c.metric); got != c.label {
			t.Errorf("Label(%q) = %q, want %q", c.metric, got, c.label)
		}
	}
}

func TestInterval(t *testing.T) {
	for _, c := range []struct {
		v, lo, hi float64
		unit      string
		want      string
		delta     string
	}{
		{3.1e-6, 2.8e-6, 3.4e-6, "seconds per connection", "3.1 us [2.8, 3.4]", "+3.1 us [+2.8, +3.4]"},
		{9e-6, 5e-6, 13e-6, Seconds, "9 us [5, 13]", "+9 us [+5, +13]"},
		{-9e-6, -13e-6, 1e-6, Seconds, "-9 us [-13, 1]", "-9 us [-13, +1]"},
		{120.4e-6, 118.2e-6, 121.1e-6, Seconds, "120 us [118, 121]", "+120 us [+118, +121]"},
		{999.7e-9, 999.6e-9, 999.8e-9, Seconds, "0.9997 us [0.9996, 0.9998]", "+0.9997 us [+0.9996, +0.9998]"},
		{12.3456, 12.3455, 12.3457, Seconds, "12.35 s [12.35, 12.35]", "+12.35 s [+12.35, +12.35]"},
		{1.2e6, 1.2e6, 1.2e6, Bytes, "1.20 MB [1.20, 1.20]", "+1.20 MB [+1.20, +1.20]"},
		{12, 8, 16, Bytes, "12 B [8, 16]", "+12 B [+8, +16]"},
		{1998.4, 1990, 2003, PerSecond, "1998 /s [1990, 2003]", "+1998 /s [+1990, +2003]"},
		{0.71, 0.69, 0.73, Part, "71 % [69, 73]", "+71 % [+69, +73]"},
		{3.00e-6, 2.96e-6, 3.20e-6, Seconds, "3.0 us [3.0, 3.2]", "+3.0 us [+3.0, +3.2]"},
		{2.5e-6, 0.2e-6, 4.8e-6, Seconds, "2.5 us [0.2, 4.8]", "+2.5 us [+0.2, +4.8]"},
		{2.5e-6, -0.2e-6, 4.8e-6, Seconds, "3 us [0, 5]", "+3 us [0, +5]"},
		{0, 0, 0, Seconds, "0 s [0, 0]", "0 s [0, 0]"},
		{-1e-12, -2e-9, 2e-9, Seconds, "0 ns [-2, 2]", "0 ns [-2, +2]"},
		{17, 17, 17, Count, "17 [17, 17]", "+17 [+17, +17]"},
		{1, 1, 2, Count, "1 [1, 2]", "+1 [+1, +2]"},
		{1, 0.5, 1.5, Count, "1.0 [0.5, 1.5]", "+1.0 [+0.5, +1.5]"},
		{2, 1.5, 2.5, Count, "2.0 [1.5, 2.5]", "+2.0 [+1.5, +2.5]"},
		{0, -0.5, 0.5, Count, "0.0 [-0.5, 0.5]", "0.0 [-0.5, +0.5]"},
		{12, 11.6, 12.4, "per flush", "12.0 [11.6, 12.4]", "+12.0 [+11.6, +12.4]"},
		{600, 0.3, 700, Bytes, "600.0 B [0.3, 700.0]", "+600.0 B [+0.3, +700.0]"},
		{600, 598.7, 601.2, Bytes, "600 B [599, 601]", "+600 B [+599, +601]"},
	} {
		if got := Interval(c.v, c.lo, c.hi, c.unit); got != c.want {
			t.Errorf("Interval(%g, %g, %g) = %q, want %q", c.v, c.lo, c.hi, got, c.want)
		}
		if got := Delta(c.v, c.lo, c.hi, c.unit); got != c.delta {
			t.Errorf("Delta(%g, %g, %g) = %q, want %q", c.v, c.lo, c.hi, got, c.delta)
		}
	}
}

func TestValue(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{
		{0, Seconds, "0 s"}, {0, Bytes, "0 B"}, {60e-6, Seconds, "60.0 us"}, {999.6e-9, Seconds, "1.000 us"},
		{1.5, Seconds, "1.50 s"}, {412e-12, Seconds, "0.412 ns"},
		{90, Seconds, "90.0 s"}, {1234567, Bytes, "1.23 MB"}, {4096, Bytes, "4.10 kB"}, {512, Bytes, "512 B"},
		{12.5, "bytes per service", "12.5 B"},
		{28431.2, PerSecond, "28431 /s"}, {0.714, Part, "71.4 %"}, {3, Count, "3"}, {0.25, Count, "0.250"},
		{-2.5e-3, Seconds, "-2.50 ms"},
		{math.Inf(1), Seconds, "+Inf s"}, {math.NaN(), Bytes, "NaN B"},
	} {
		if got := Value(c.v, c.unit); got != c.want {
			t.Errorf("Value(%g, %s) = %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

func TestRough(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{{60e-6, Seconds, "60 us"}, {1234567, Bytes, "1.2 MB"}, {0, Seconds, "0 s"}, {3.14e-6, Seconds, "3.1 us"},
		{512, Bytes, "512 B"}} {
		if got := Rough(c.v, c.unit); got != c.want {
			t.Errorf("Rough(%g, %s) = %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{
		0: "0", 7: "7", 999: "999", 1000: "1,000", 123_456: "123,456", 10_000_000: "10,000,000", -1000: "-1,000",
		-999: "-999",
	} {
		if got := Thousands(n); got != want {
			t.Errorf("Thousands(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestCounted(t *testing.T) {
	for want, got := range map[string]string{
		"1 block": Counted(1, "block"), "0 blocks": Counted(0, "block"), "1 process": Counted(1, "process"),
		"2 processes": Counted(2, "process"), "3 sandboxes": Counted(3, "sandbox"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
