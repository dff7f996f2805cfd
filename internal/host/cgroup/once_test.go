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
		"v1":      {map[string]string{"cpuacct.usage": "1234567\n", "memory.max_usage_in_bytes": "4096\n"}, ok(1234567), ok(4096)},
		"v2":      {map[string]string{"cpu.stat": "usage_usec 12\nuser_usec 5\n", "memory.peak": "8192\n"}, ok(12000), ok(8192)},
		"cpu":     {map[string]string{"cpu.stat": "nr_periods 0\n"}, Value{}, Value{}}, // the controller cpu of v1, without cpuacct
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
