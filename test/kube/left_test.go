package kube

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestNothingIsLeft: when the process that has started a cluster is killed, while the cluster starts or while pods
// run, the machine is as it was before: control groups, processes, namespaces, mounts, network interfaces, sysctls,
// files.
func TestNothingIsLeft(t *testing.T) {
	const victim = "TARE_TEST_KUBE_VICTIM"
	if name := os.Getenv(victim); name != "" {
		c := Up(t, Options{Name: name, Nodes: 11, MachineNodes: 1}) // 11: more than the limit of inotify instances
		if err := c.Apply(web); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Kubectl("rollout", "status", "daemonset/web", "--timeout=120s"); err != nil {
			t.Fatal(err)
		}
		fmt.Println("pods run")
		select {}
	}
	if _, err := Bin(); err != nil {
		t.Skip(err)
	}
	for when, until := range map[string]string{"starting": "", "running": "pods run"} {
		t.Run(when, func(t *testing.T) {
			name := fmt.Sprintf("tare-test-kube-victim-%d-%s", os.Getpid(), when)
			before := machine(t, name)
			for what := range before {
				if strings.Contains(what, name) {
					t.Fatalf("it is there already: %s", what)
				}
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestNothingIsLeft$", "-test.v")
			cmd.Env = append(os.Environ(), victim+"="+name)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait() //nolint:errcheck // it is killed
			defer cmd.Process.Kill()

			if until == "" {
				eventually(t, func() string { // a kubelet runs
					if slices.ContainsFunc(processesOf(t, name), func(p string) bool { return strings.HasSuffix(p, " kubelet") }) {
						return ""
					}
					return "no kubelet has started"
				})
			} else {
				for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != until; {
					if strings.Contains(lines.Text(), "FAIL") {
						t.Fatal(lines.Text())
					}
				}
			}
			during := machine(t, name)
			const inotify = "sysctl /proc/sys/fs/inotify/max_user_instances"
			for _, kind := range []string{"group", "process", "namespace", inotify, "file"} {
				if !slices.ContainsFunc(slices.Collect(maps.Keys(during)), func(what string) bool {
					return strings.HasPrefix(what, kind+" ") && !before[what]
				}) {
					t.Errorf("a running cluster shows no %s: this test would not see one that is left", kind)
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			// Other programs come and go, so only what is there each time counts as left behind.
			var left map[string]bool
			eventually(t, func() string {
				now := machine(t, name)
				for what := range during {
					if strings.HasPrefix(what, "namespace ") && inUse(strings.TrimPrefix(what, "namespace ")) {
						now[what] = true
					}
				}
				maps.DeleteFunc(now, func(what string, _ bool) bool { return before[what] || left != nil && !left[what] })
				left = now
				if len(left) > 0 {
					return "left behind:\n" + strings.Join(slices.Sorted(maps.Keys(left)), "\n")
				}
				return ""
			})
		})
	}
}

// machine lists the things on the machine that a cluster could change, and all that carry the cluster's name.
func machine(t *testing.T, name string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	walk := func(dir string, visit func(path string, d fs.DirEntry) error) {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil { // it has gone
				return nil
			}
			return visit(path, d)
		})
	}
	walk("/sys/fs/cgroup", func(path string, d fs.DirEntry) error {
		if d.IsDir() && strings.Contains(path, name) {
			found["group "+path] = true
		}
		return nil
	})
	for _, dir := range []string{"/etc", "/run", "/var/lib", "/var/log", "/opt", "/dev/shm", os.TempDir()} {
		walk(dir, func(path string, d fs.DirEntry) error {
			if dir != os.TempDir() || strings.HasPrefix(filepath.Base(path), name) {
				found["file "+path] = true
			}
			if d.IsDir() && path != dir && (dir == os.TempDir() || strings.Count(path, "/") > 4) {
				return fs.SkipDir
			}
			return nil
		})
	}
	walk("/proc/sys", func(path string, d fs.DirEntry) error {
		if d.IsDir() || volatile.MatchString(path) {
			return nil
		}
		if value, err := os.ReadFile(path); err == nil {
			found[fmt.Sprintf("sysctl %s = %s", path, bytes.TrimSpace(value))] = true
		}
		return nil
	})
	for _, p := range processesOf(t, name) {
		found["process "+p] = true
		pid, _, _ := strings.Cut(p, " ")
		for _, kind := range []string{"net", "mnt", "pid", "uts", "ipc", "cgroup"} {
			ns, err := os.Readlink("/proc/" + pid + "/ns/" + kind)
			own, _ := os.Readlink("/proc/self/ns/" + kind)
			if err == nil && ns != own {
				found["namespace "+ns] = true
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		found["mount "+strings.TrimSpace(line)] = true
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Fatal(err)
	}
	for _, l := range links {
		found["interface "+l.Attrs().Name] = true
	}
	return found
}

// volatile are sysctls that the kernel itself changes, and those of single interfaces.
var volatile = regexp.MustCompile(`/random/|/ns_last_pid|-nr$|/nr$|inode-|dentry-state|_count$|/sched_domain/|/stat_refresh` +
	`|/net/.*/(conf|neigh)/|/kernel/perf_event_max_sample_rate|/(bpf_stats_enabled|core_pattern)$`)

// processesOf returns the processes whose control group, environment or arguments name a cluster, each as "ID NAME".
func processesOf(t *testing.T, name string) (found []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if filepath.Base(dir) == fmt.Sprint(os.Getpid()) {
			continue
		}
		for _, file := range []string{"cgroup", "environ", "cmdline"} {
			if data, _ := os.ReadFile(filepath.Join(dir, file)); bytes.Contains(data, []byte(name)) {
				comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
				found = append(found, filepath.Base(dir)+" "+strings.TrimSpace(string(comm)))
				break
			}
		}
	}
	return found
}

// inUse reports whether any process is in a namespace, such as "net:[4026532000]".
func inUse(ns string) bool {
	kind, _, _ := strings.Cut(ns, ":")
	links, _ := filepath.Glob("/proc/[0-9]*/ns/" + kind)
	return slices.ContainsFunc(links, func(link string) bool {
		to, err := os.Readlink(link)
		return err == nil && to == ns
	})
}
