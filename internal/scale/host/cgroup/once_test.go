package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOnce(t *testing.T) {
	ok := func(n uint64) Value { return Value{n, true} }
	for name, c := range map[string]struct {
		files     map[string]string
		cpu, peak Value
	}{
		"v1": {map[string]string{"cpuacct.usage": "1234567\n", "memory.max_usage_in_bytes": "4096\n"}, ok(1234567),
			ok(4096)},
		"v2": {map[string]string{"cpu.stat": "usage_usec 12\nuser_usec 5\n", "memory.peak": "8192\n"}, ok(12000),
			ok(8192)},
		// the controller cpu of v1, without cpuacct
		"cpu":     {map[string]string{"cpu.stat": "nr_periods 0\n"}, Value{}, Value{}},
		"garbage": {map[string]string{"cpuacct.usage": "many", "memory.peak": ""}, Value{}, Value{}},
		"gone":    {nil, Value{}, Value{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if cpu, peak := CPUTime(dir), MemoryPeak(dir); cpu != c.cpu || peak != c.peak {
				t.Errorf("got %v, %v; want %v, %v", cpu, peak, c.cpu, c.peak)
			}
		})
	}
}

func TestOOMKills(t *testing.T) {
	for want, files := range map[Value]map[string]string{
		{3, true}: {"memory.events.local": "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n"},
		{2, true}: {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"},
		{}:        {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"},
	} {
		dir := t.TempDir()
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := OOMKills(dir); got != want {
			t.Errorf("%v: %+v, want %+v", files, got, want)
		}
	}
	if got := OOMKills(t.TempDir()); got.OK {
		t.Errorf("of no group: %+v", got)
	}
}
