// Package kube runs a Kubernetes cluster on this machine, for tests: Kubernetes' own components, containerd and runc,
// which test/kube/build has put into the user's cache directory. Up starts a cluster. Whatever happens to the test,
// nothing of the cluster is left: a watcher (test/kube/cluster) removes it when the test's process ends, however that
// ends.
//
// A cluster is in separate namespaces. A node is like one of the tool kind, with separate PIDs and control groups; or a
// machine node, which shares those of this machine; or an emulated machine with its own kernel and control groups of
// version 2 alone.
package kube

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"tare/test/binary"
	"tare/test/vm"
)

// Options describe the cluster to start.
type Options struct {
	Name         string   // of its control group and directory; if empty, made from the process's ID
	Nodes        int      // number of real nodes, n1, n2, ...; 0 means 1
	MachineNodes int      // how many of the nodes, from n1 on, share the machine's PIDs and control groups
	Emulated     int      // how many of the nodes (the last ones, never n1) are emulated machines, ready after a minute
	Images       []string // archives of images that every node has, in addition to tare.test/web:1
	GVisor       string   // directory with gVisor's runsc and its shim; if set, nodes have the handler runsc
	MicroVM      string   // program with the command line of tare microvm; if set, nodes have the handler microvm
}

// Cluster is a running cluster.
type Cluster struct {
	Kubeconfig string   // an administrator's file; its server is a port of 127.0.0.1 that this process forwards
	Nodes      []string // names
	Dir        string   // files of the cluster; log/ in it has the output of each component
	Group      string   // control group of all of its processes, in every hierarchy: /NAME

	bin     string
	stdin   io.WriteCloser
	watcher *exec.Cmd
	stderr  bytes.Buffer
	api     net.Listener
	wg      sync.WaitGroup
}

// ErrNotBuilt says that test/kube/build has not been run for this source tree.
var ErrNotBuilt = fmt.Errorf("needs Kubernetes (make kube)")

var names struct {
	sync.Mutex
	next int
}

// Bin returns the directory with the programs of a cluster, kubectl among them.
func Bin() (string, error) {
	root, err := binary.Root()
	if err != nil {
		return "", err
	}
	dir, err := exec.Command(filepath.Join(root, "test/kube/build"), "where").Output()
	if err != nil {
		return "", ErrNotBuilt
	}
	return filepath.Join(strings.TrimSpace(string(dir)), "bin"), nil
}

// Up starts a cluster that ends with the test. It skips the test if the programs of a cluster have not been built, or
// if the test lacks root or control groups of version 1. If the test fails, the last errors of every component are
// logged.
func Up(t testing.TB, o Options) *Cluster {
	t.Helper()
	if _, err := Bin(); err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		t.Skip("needs control groups of version 1")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c, err := Start(o)
	if errors.Is(err, vm.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.logErrors(t)
		}
		if err := c.Down(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Start starts a cluster and returns when all nodes are ready. The caller must call Down.
func Start(o Options) (_ *Cluster, err error) {
	o.Nodes = max(o.Nodes, 1)
	if o.Name == "" {
		names.Lock()
		names.next++
		o.Name = fmt.Sprintf("tare-test-kube-%d-%d", os.Getpid(), names.next)
		names.Unlock()
	}
	root, err := binary.Root()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Group: "/" + o.Name, Dir: filepath.Join(os.TempDir(), o.Name)}
	if c.bin, err = Bin(); err != nil {
		return nil, err
	}
	addresses := map[string]string{}
	for i := 1; i <= o.Nodes; i++ {
		name := fmt.Sprintf("n%d", i)
		c.Nodes = append(c.Nodes, name)
		addresses[name] = fmt.Sprintf("10.100.0.%d", i)
	}

	c.watcher = exec.Command("unshare", "--mount", "--propagation", "private", filepath.Join(root, "test/kube/cluster"))
	c.watcher.Env = append(os.Environ(), "NAME="+o.Name, "STATE="+c.Dir, "BIN="+c.bin,
		fmt.Sprint("NODES=", o.Nodes), fmt.Sprint("MACHINE_NODES=", o.MachineNodes),
		fmt.Sprint("EMULATED_NODES=", o.Emulated), "EMULATED_CMDLINE="+vm.Cmdline, "GVISOR="+o.GVisor,
		"MICROVM="+o.MicroVM)
	c.watcher.Dir = "/"
	c.watcher.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that Ctrl-C at the terminal does not reach it
	c.watcher.Stderr = &c.stderr
	if c.stdin, err = c.watcher.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.watcher.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.watcher.Start(); err != nil {
		return nil, fmt.Errorf("starting a cluster: %w", err)
	}
	defer func() {
		if err != nil {
			_ = c.Down()
			err = fmt.Errorf("starting a cluster: %w\n%s", err, bytes.TrimSpace(c.stderr.Bytes()))
		}
	}()
	lines := bufio.NewReader(out)
	says := func(what string) error {
		if line, err := lines.ReadString('\n'); err != nil || line != what+"\n" {
			return fmt.Errorf("waiting for %q from the watcher, got %q: %w", what, line, err)
		}
		return nil
	}
	if err := says("made"); err != nil {
		return nil, err
	}
	if c.api, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if c.Kubeconfig, err = certificates(filepath.Join(c.Dir, "pki"), c.api.Addr().String(), addresses); err != nil {
		return nil, err
	}
	if err := c.images(o.Images); err != nil {
		return nil, err
	}
	if o.Emulated > 0 {
		if err := emulated(filepath.Join(c.Dir, "emulated")); err != nil {
			return nil, err
		}
	}
	c.wg.Go(c.forward)
	if _, err := io.WriteString(c.stdin, "go\n"); err != nil {
		return nil, err
	}
	return c, says("ready")
}

// images puts the archives of images where nodes import them from.
func (c *Cluster) images(others []string) error {
	to := filepath.Join(c.Dir, "images")
	if err := image(filepath.Join(to, "pause.tar"), "tare.test/pause:1", "/pause",
		map[string]string{"/pause": filepath.Join(c.bin, "pause")}); err != nil {
		return err
	}
	web := filepath.Join(c.Dir, "web")
	if err := binary.Program(web, "./test/kube/web"); err != nil {
		return err
	}
	if err := image(filepath.Join(to, "web.tar"), "tare.test/web:1", "/bin/web",
		map[string]string{"/bin/web": web}); err != nil {
		return err
	}
	for i, path := range others {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, fmt.Sprintf("other-%d.tar", i)), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// forward connects clients of c.api with the API server, which is in the network namespace of node 1.
func (c *Cluster) forward() {
	for {
		client, err := c.api.Accept()
		if err != nil {
			return
		}
		c.wg.Go(func() {
			defer client.Close()
			server, err := c.Dial("n1", "10.100.0.1:6443")
			if err != nil {
				return
			}
			defer server.Close()
			go func() {
				_, _ = io.Copy(server, client)
				_ = server.Close()
			}()
			_, _ = io.Copy(client, server)
		})
	}
}

// Dial connects to an address as a process on the node would: to a pod, a service, a node.
func (c *Cluster) Dial(node, address string) (net.Conn, error) {
	ns, err := netns.GetFromPath(fmt.Sprintf("/proc/%d/root/run/netns/%s", c.watcher.Process.Pid, node))
	if err != nil {
		return nil, fmt.Errorf("connecting from %s: %w", node, err)
	}
	defer ns.Close()
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer own.Close()
	if err := netns.Set(ns); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("connecting from %s: %w", node, err)
	}
	conn, err := net.DialTimeout("tcp", address, 30*time.Second)
	if back := netns.Set(own); back != nil { // the thread, which may be the main one, stays locked to this goroutine
		return conn, errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return conn, err
}

// Kubectl runs kubectl as the administrator, and returns what it printed.
func (c *Cluster) Kubectl(args ...string) (string, error) { return c.kubectl("", args...) }

func (c *Cluster) kubectl(stdin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.bin, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "KUBECACHEDIR="+filepath.Join(c.Dir, "cache"))
	cmd.Stdin = strings.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %.2000s", strings.Join(args, " "), err,
			bytes.TrimSpace(errs.Bytes()))
	}
	return string(out), nil
}

// Apply applies a manifest.
func (c *Cluster) Apply(manifest string) error {
	_, err := c.kubectl(manifest, "apply", "-f", "-")
	return err
}

// Simulate adds nodes that kwok simulates, and returns when they are ready: fake-0001, fake-0002, ..., with a taint
// kwok.x-k8s.io/node. Pods that are placed on them become ready, but nothing runs. Call it only once.
func (c *Cluster) Simulate(nodes int) error {
	if _, err := io.WriteString(c.stdin, "kwok\n"); err != nil {
		return err
	}
	var text strings.Builder
	for i := 1; i <= nodes; i++ {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Node
metadata:
  name: fake-%04d
  labels: {type: kwok, kubernetes.io/hostname: fake-%04[1]d}
  annotations: {kwok.x-k8s.io/node: fake}
spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
status:
  allocatable: {cpu: "32", memory: 256Gi, pods: "110"}
  capacity: {cpu: "32", memory: 256Gi, pods: "110"}
`, i)
	}
	if _, err := c.kubectl(text.String(), "create", "-f", "-"); err != nil {
		return err
	}
	ready := 0
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		out, err := c.Kubectl("get", "nodes", "-l", "type=kwok", "--no-headers") // kubectl wait asks for one after the other
		if err != nil {
			return err
		}
		if ready = strings.Count(out, " Ready "); ready == nodes {
			return nil
		}
	}
	return fmt.Errorf("%d of %d simulated nodes are ready", ready, nodes)
}

// Down ends the cluster and returns when nothing of it is left. A second call does nothing.
func (c *Cluster) Down() error {
	if c.watcher.ProcessState != nil {
		return nil
	}
	_ = c.stdin.Close()
	if c.api != nil {
		_ = c.api.Close()
	}
	err := c.watcher.Wait()
	c.wg.Wait()
	if err != nil {
		return fmt.Errorf("ending a cluster: %w\n%s", err, bytes.TrimSpace(c.stderr.Bytes()))
	}
	return nil
}

// logErrors logs the last errors that every component has reported.
func (c *Cluster) logErrors(t testing.TB) {
	logs, _ := filepath.Glob(filepath.Join(c.Dir, "log/*"))
	emulated, _ := filepath.Glob(filepath.Join(c.Dir, "n*/log/*"))
	for _, path := range slices.Concat(logs, emulated) {
		data, _ := os.ReadFile(path)
		lines := slices.DeleteFunc(strings.Split(string(data), "\n"), func(line string) bool {
			return !strings.HasPrefix(line, "E") && !strings.HasPrefix(line, "F") && !strings.Contains(line, "level=error")
		})
		if len(lines) > 0 {
			t.Logf("%s:\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-3):], "\n"))
		}
	}
}
