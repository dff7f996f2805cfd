package e2e

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/results/calibrate"
)

// Rows of the table "Which command needs what" of docs/security.md: the parts of an experiment by themselves, nodes and
// the calibration.

// ends sends SIGTERM to a command that runs until then, and checks that it exits with 0.
func ends(t *testing.T, p *process) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	if o := p.wait(t); o.code != 0 {
		t.Errorf("%s", o)
	}
}

// saidBy waits until a command has printed something that the expression matches, and returns its first submatch.
func saidBy(t *testing.T, p *process, out *buffer, expression string) (group string) {
	t.Helper()
	find := regexp.MustCompile(expression)
	whileItRuns(t, p, func() bool {
		m := find.FindStringSubmatch(out.String())
		if m != nil {
			group = m[1]
		}
		return m != nil
	})
	return group
}

func appsWork(t *testing.T, a actor) []string {
	burn := a.start(t, "app", "burn", "--share", "0.05")
	saidBy(t, burn, &burn.stdout, `(burning 0\.05 of each CPU)`)
	mesh := a.start(t, "app", "mesh", "--services", "3")
	address := saidBy(t, mesh, &mesh.stdout, `listens at (\S+),`)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	ends(t, burn)
	ends(t, mesh)
	return nil
}

// loaded holds the field of a load's --json output that tests look at.
type loaded struct{ Done int64 }

// loads runs a load, in a control group if one is given, and checks that it did something.
func (a actor) loads(t *testing.T, group string, args ...string) {
	t.Helper()
	c := command{args: append(append([]string{"load"}, args...), "--duration", "300ms", "--json"), dir: a.dir,
		env: []string{"TMPDIR=" + a.temporary}, user: nobody, has: a.has, group: group}
	o := c.start(t).wait(t)
	var r loaded
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil || o.code != 0 || r.Done == 0 {
		t.Errorf("%q did %d: %v: %s", c.args, r.Done, err, o)
	}
}

func loadsWork(t *testing.T, a actor) []string {
	a.loads(t, "", "exec", "--rate", "100")
	a.loads(t, "", "write", "--rate", "100", "--directory", a.dir)
	for load, does := range map[string]string{"probe": `"histograms"`, "syscalls": `"getpid_seconds"`} {
		if o := a.done(t, "load", load, "--duration", "300ms", "--json"); !strings.Contains(o.stdout, does) {
			t.Errorf("%s: %s", load, o)
		}
	}
	return nil
}

// meshed starts a data plane in a control group that it makes, and returns the group.
func meshed(t *testing.T, name string, args ...string) (group string) {
	t.Helper()
	group = filepath.Join(v2(t).Mount, fmt.Sprintf("tare-test-rights-%s-%d", name, os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, group) })
	p := command{args: append([]string{"subject", "kernelmesh", "--human", "--cgroup", group}, args...)}.start(t)
	saidBy(t, p, &p.stdout, `(kernelmesh serves )`)
	t.Cleanup(func() { ends(t, p) })
	return group
}

func meshLoadsWork(t *testing.T, a actor) []string {
	services := filepath.Join(ownDir(t), "services.yaml")
	text := "services: [{address: 10.96.0.1:80, protocol: udp, endpoints: [{address: 127.0.0.1:8080}]}]\n"
	if err := os.WriteFile(services, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	a.loads(t, meshed(t, "connect", "--services", services, "--peer", "endpoint"), "connect", "--service", "10.96.0.1:80",
		"--endpoints")

	mesh := a.start(t, "app", "mesh", "--services", "3")
	address := saidBy(t, mesh, &mesh.stdout, `listens at (\S+),`)
	control := saidBy(t, mesh, &mesh.stdout, `takes changes at (\S+) `)
	a.loads(t, meshed(t, "push", "--xds", address, "--peer", "endpoint"), "push", "--mesh", control)
	ends(t, mesh)
	return nil
}

func storeRights() rightsTest {
	args := []string{"subject", "store", "--store", "pooled", "--duration", "200ms", "--json"}
	return rightsTest{
		refused: func(*testing.T) [][]string { return [][]string{args} },
		works: func(t *testing.T, a actor) []string {
			var r loaded
			if o := a.done(t, args...); json.Unmarshal([]byte(o.stdout), &r) != nil || r.Done == 0 {
				t.Errorf("store: %s", o)
			}
			return nil
		},
	}
}

const meshOfProxies = `
mtls: strict
services:
- {name: web, address: "127.1.0.1:80", protocol: http, endpoints: [{address: "127.1.1.1:80"}]}
proxies:
- {id: web-1, identity: web, inbound: {web: {listen: "127.1.1.1:80", to: "127.0.0.1:8080"}}}
`

func controlplaneWorks(t *testing.T, a actor) []string {
	config := filepath.Join(ownDir(t), "mesh.yaml")
	if err := os.WriteFile(config, []byte(meshOfProxies), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"credentials", "roots"} {
		dir = filepath.Join(a.dir, dir)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, nobody, nobody)); err != nil {
			t.Fatal(err)
		}
	}
	p := a.start(t, "controlplane", "--human", "--config", config, "--credentials", "credentials", "--roots", "roots")
	saidBy(t, p, &p.stdout, `(the control plane listens at )`)
	ends(t, p)
	if _, err := os.Stat(filepath.Join(a.dir, "credentials", "web-1")); err != nil {
		t.Error(err)
	}
	return []string{"credentials", "roots"}
}

// podWorks: a program that stands for Envoy is started once there is a certificate.
func podWorks(t *testing.T, a actor) []string {
	dir, cluster := ownDir(t), newCluster(t)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chown(path, nobody, nobody)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plane := a.start(t, "controlplane", "--human", "--config", file("mesh.yaml", meshOfProxies), "--service-account-keys",
		file("keys.json", cluster.keys(t)), "--webhook", "127.0.0.1:0", "--injection", file("pods.yaml",
			"redirect: cni\nsidecar: {name: mesh, image: example.invalid/envoy:1}\n"))
	address := saidBy(t, plane, &plane.stdout, `the control plane listens at (\S+): `)
	roots, err := base64.StdEncoding.DecodeString(saidBy(t, plane, &plane.stdout, `caBundle: (\S+)`))
	if err != nil {
		t.Fatal(err)
	}
	pod := command{
		args: []string{
			"controlplane", "pod", "--address", address, "--node", "web-1", "--identity",
			"spiffe://mesh.local/ns/default/sa/web", "--token-file", file("token", cluster.token(t, "default", "web")), "--",
			"sh", "-c", "echo started >&2; exec sleep 100", "envoy",
		},
		dir: a.dir, env: []string{"TMPDIR=" + a.temporary, "TARE_ROOTS=" + string(roots)}, user: a.user, has: a.has,
	}.start(t)
	saidBy(t, pod, &pod.stderr, `(started)`)
	ends(t, pod)
	ends(t, plane)
	return nil
}

// nodeRights: a node does what a run does. Its coordinator runs as root.
func nodeRights() rightsTest {
	var keys string
	node := func(address string) []string {
		own := filepath.Join(keys, "n1")
		return []string{"node", "--join", address, "--name", "n1", "--ca", filepath.Join(keys, "authority.pem"),
			"--cert", own + ".pem", "--key", own + ".key", "--patience", "10s"}
	}
	return rightsTest{
		refused: func(t *testing.T) [][]string {
			keys = filepath.Join(ownDir(t), "keys")
			if o := tare(t, "node", "keys", "--dir", keys, "n1"); o.code != 0 {
				t.Fatal(o)
			}
			for _, name := range []string{"", "authority.pem", "n1.pem", "n1.key"} {
				if err := os.Chown(filepath.Join(keys, name), nobody, nobody); err != nil {
					t.Fatal(err)
				}
			}
			return [][]string{node("127.0.0.1:1")}
		},
		works: func(t *testing.T, a actor) []string {
			dir := filepath.Join(t.TempDir(), "out")
			spec := specFile(t, strings.Replace(shortSpec, "blocks: 2", "blocks: 1\nnodes: 1", 1))
			run := command{args: []string{"run", spec, "--nodes-listen", "127.0.0.1:0", "--nodes-keys", keys, "--nodes", "1",
				"--out", dir}, timeout: 2 * time.Minute}.start(t)
			agent := a.start(t, node(saidBy(t, run, &run.stderr, `waiting for 1 node at (\S+)`))...)
			o := run.wait(t)
			if n := agent.wait(t); n.code != 0 {
				t.Errorf("the node: %s", n)
			}
			c, err := record.Read(dir)
			if err != nil {
				t.Fatalf("%v: %s", err, o)
			}
			if !slices.ContainsFunc(c.Trials, func(tr record.Trial) bool { return tr.Metrics["throughput_per_second"] > 0 }) {
				t.Errorf("no trial measured anything: %s", o)
			}
			return nil
		},
	}
}

func calibrateRights() rightsTest {
	return rightsTest{
		alone:   true, // it weighs the whole machine
		refused: func(*testing.T) [][]string { return [][]string{{"calibrate", "--quick", "--only", "maps"}} },
		works: func(t *testing.T, a actor) []string {
			o := a.run(t, "calibrate", "--quick", "--only", "maps", "--json")
			var r calibrate.Report
			if err := json.Unmarshal([]byte(o.stdout), &r); err != nil || o.code != 0 && o.code != int(fault.Invalid) {
				t.Fatalf("%v: %s", err, o)
			}
			if !slices.ContainsFunc(r.Weights, func(w calibrate.Weight) bool { return w.Section == "maps" }) {
				t.Errorf("no map was weighed: %s", o)
			}
			return nil
		},
	}
}

// microvmBundle makes a bundle that belongs to the actors' user. Its control groups are below one that the test makes.
func microvmBundle(t *testing.T, id, script string) string {
	t.Helper()
	dir := ociBundle(t, id, script, nil)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, nobody, nobody))
	})
	if err == nil { // the testing package makes these directories for root alone
		err = errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func microvmShows(t *testing.T, a actor) []string {
	if o := a.done(t, "microvm", "features"); !strings.Contains(o.stdout, `"ociVersionMin"`) {
		t.Errorf("features: %s", o)
	}
	return nil
}

func microvmRights() rightsTest {
	const where = "/run/tare-microvm"
	var bundle, id string
	var machine []string // flags of tare microvm
	do := func(t *testing.T, a actor, args ...string) string {
		t.Helper()
		// The container inherits the runtime's output, and a pipe would stay open for as long as the container lives.
		inFile := append([]string{"-c", `exec "$0" "$@" > said 2>&1`, bin, "microvm"}, slices.Concat(machine, args)...)
		o := command{binary: "/bin/sh", args: inFile, dir: a.dir, env: []string{"TMPDIR=" + a.temporary},
			user: nobody, has: a.has, timeout: 4 * time.Minute}.start(t).wait(t)
		text, err := os.ReadFile(filepath.Join(a.dir, "said"))
		if err != nil || o.code != 0 {
			t.Errorf("%q, with %v: exit code %d, %v: %s", args, a.has, o.code, err, text)
		}
		return string(text)
	}
	lives := func(t *testing.T, a actor, rootfs string) {
		t.Helper()
		do(t, a, "create", "--bundle", bundle, "--pid-file", "pid", id)
		if text := do(t, a, "state", id); !strings.Contains(text, `"io.tare.microvm.rootfs": "`+rootfs+`"`) {
			t.Errorf("the root is not %s: %s", rootfs, text)
		}
		if text := do(t, a, "list"); !strings.Contains(text, id) {
			t.Errorf("list: %s", text)
		}
		do(t, a, "start", id)
		do(t, a, "kill", id, "KILL")
		do(t, a, "delete", "--force", id)
		if left := sandboxRemains(id); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	more := map[cap.Value]func(t *testing.T, with, lacks actor){}
	var once sync.Once // one success will do, because the actor with has all capabilities each time
	for _, c := range []cap.Value{
		cap.SYS_ADMIN, cap.SETPCAP, cap.CHOWN, cap.FOWNER, cap.FSETID, cap.SETGID, cap.SETUID, cap.MKNOD, cap.SETFCAP,
	} {
		more[c] = func(t *testing.T, with, lacks actor) {
			lacks.refused(t, c, slices.Concat([]string{"microvm"}, machine,
				[]string{"--rootfs", "shared", "create", "--bundle", bundle, id})...)
			once.Do(func() { lives(t, with, "shared") })
		}
	}
	return rightsTest{
		alone: true, // all sandboxes are in one directory
		refused: func(t *testing.T) [][]string {
			for _, set := range microvm(t).env {
				name, value, _ := strings.Cut(strings.TrimPrefix(set, "TARE_MICROVM_"), "=")
				if name == "KERNEL" { // other users may not be allowed to look into this tree
					beside := ownDir(t)
					if err := unix.Mount(filepath.Dir(value), beside, "", unix.MS_BIND, ""); err != nil {
						t.Fatal(err)
					}
					if err := unix.Mount("", beside, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
						t.Error(err)
					}
					t.Cleanup(func() {
						if err := unix.Unmount(beside, 0); err != nil {
							t.Error(err)
						}
					})
					value = filepath.Join(beside, filepath.Base(value))
				}
				machine = append(machine, "--"+strings.ToLower(name), value)
			}
			if _, err := os.Stat(where); errors.Is(err, fs.ErrNotExist) {
				t.Cleanup(func() { _ = os.Remove(where) }) // the test creates it, owned by the user nobody
			}
			id = idOf("rights")
			bundle = microvmBundle(t, id, "sleep 1000")
			return [][]string{slices.Concat([]string{"microvm"}, machine, []string{"create", "--bundle", bundle, id})}
		},
		works: func(t *testing.T, a actor) []string {
			lives(t, a, "packed")
			return []string{"pid", "said"}
		},
		more: more,
	}
}
