package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// TestOutside: a thread in another group than its process is found once in each mounted hierarchy.
func TestOutside(t *testing.T) {
	root := filepath.Join(t.TempDir(), "proc")
	for thread, text := range map[string]string{
		"7":  "5:memory:/home\n4:pids:/far\n3:cpu,cpuacct:/home/below\n1:name=systemd:/home\n0::/home\n",
		"8":  "5:memory:/home\n3:cpu,cpuacct:/other\n1:name=systemd:/home\n0::/gone\n",
		"9":  "5:memory:/home\n3:cpu,cpuacct:/third\n1:name=systemd:/home\n0::/home\n",
		"10": "5:memory:/\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/home\n", // it is about to end
	} {
		flags := 0
		if thread == "10" {
			flags = 4 // PF_EXITING
		}
		for name, text := range map[string]string{
			filepath.Join("7", "task", thread, "cgroup"): text,
			filepath.Join(thread, "stat"): fmt.Sprintf("%s (x) R 1 7 7 0 -1 %d 0 0 0 0 0 0 0 0 20 0 4 0 1 0\n", thread,
				flags),
		} {
			name = filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := &Layout{roots: Roots{Proc: root}, Hierarchies: []Hierarchy{
		{Controllers: []string{"memory"}, Root: "/"}, {Controllers: []string{"cpu", "cpuacct"}, Root: "/"},
		{Name: "systemd", Root: "/"}, {V2: true, Controllers: []string{"pids"}, Root: "/"},
	}}
	within := func(m Membership) bool { return m.Identity == "/home" || m.Identity == "/home/below" }
	found, err := l.Outside(7, within)
	want := []Membership{{&l.Hierarchies[1], "/other"}, {&l.Hierarchies[3], "/gone"}}
	if err != nil || !reflect.DeepEqual(found, want) {
		t.Errorf("%+v, %v, want %+v", found, err, want)
	}
	if found, err := l.Outside(6, within); found != nil || err != nil {
		t.Errorf("%+v, %v, of a process that has ended", found, err)
	}
}
