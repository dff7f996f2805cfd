// Package istiod runs Istio's control plane as an independent control plane for data planes under test: pilot-discovery
// with a minimal Kubernetes API that this package serves, and with services from files or from that API
// (docs/istiod.md).
package istiod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/experiment/process"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
)

// Options configures an istiod.
type Options struct {
	Binary string // path of pilot-discovery; empty: the result of Find
	Mesh   string // mesh configuration (MeshConfig as YAML); empty: Istio's defaults
	Log    io.Writer

	// Objects are the initial objects in the Kubernetes API, to which PutObjects adds. Unless Objects is nil, istiod gets
	// its configuration from the API instead of files, as in a cluster, so that it notices a change at once rather than
	// after 250 ms. The list may be empty.
	Objects []Object
	// Environment holds further environment variables, as NAME=VALUE. They override those that Start sets, except HOME
	// and TMPDIR.
	Environment []string
}

// Istiod is a running istiod. Unless Options.Objects was set, it reads its configuration from files in Dir. Create
// files elsewhere and rename them into Dir, so that istiod never reads an incomplete file.
type Istiod struct {
	XDS  string // host:port of aggregated discovery, without TLS
	Dir  string // directory of the configuration
	PID  int
	HTTP string // host:port of its readiness and debug pages, without TLS

	process child.Process
	scratch *files.Scratch
	api     *kubernetes
	close   sync.Once
}

// Version is the release of Istio that 'make istiod' builds. Proxies put it into their metadata (NodeOf).
const Version = "1.31.1"

// variable is the environment variable that names the binary.
const variable = "TARE_ISTIOD"

// Find returns the path of the pilot-discovery to use: the one that the environment variable TARE_ISTIOD names, else
// the one on the PATH, else the one beside this program. It never uses the working directory, which may belong to
// another user. The error says how to build one.
func Find() (string, error) {
	if path := os.Getenv(variable); path != "" {
		if _, err := child.Find(path); err != nil {
			return "", fault.Wrap(err, fault.Machine, variable, buildHint, "istiod's pilot-discovery cannot be run")
		}
		return path, nil
	}
	var beside []string
	if self, err := os.Executable(); err == nil {
		beside = []string{filepath.Dir(self)}
	}
	if path, err := child.Find(name, beside...); err == nil {
		return path, nil
	}
	return "", fault.New(fault.Machine, name, buildHint, "istiod's pilot-discovery is not installed")
}

const buildHint = "build it with 'make istiod' (500 s of CPU time), or name one by " + variable

const name = "pilot-discovery"

// readyTimeout is how long istiod may take until it serves, even on a busy machine.
const readyTimeout = 90 * time.Second

// Start starts an istiod, which listens on the loopback interface only, and returns when it serves. The istiod runs
// until Close. If this process ends first, the kernel kills the istiod.
func Start(ctx context.Context, o Options) (_ *Istiod, err error) {
	if o.Binary == "" {
		if o.Binary, err = Find(); err != nil {
			return nil, err
		}
	}
	i := &Istiod{}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.Close())
		}
	}()
	if i.scratch, err = files.NewScratch("", "istiod"); err != nil {
		return nil, err
	}
	if i.api, err = newKubernetes(); err != nil {
		return nil, err
	}
	i.api.put(o.Objects...)
	i.Dir = filepath.Join(i.scratch.Path(), "config")
	if err := os.Mkdir(i.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making istiod's directory: %w", err)
	}
	file := func(name, text string) string {
		path := filepath.Join(i.scratch.Path(), name)
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	access := file("kubeconfig", fmt.Sprintf(kubeconfig, i.api.at))
	mesh := file("mesh", o.Mesh)
	networks := file("networks", "networks: {}\n")
	if err != nil {
		return nil, fmt.Errorf("writing istiod's files: %w", err)
	}
	ports, err := process.FreeAddresses(2)
	if err != nil {
		return nil, err
	}
	i.XDS, i.HTTP = ports[0], ports[1]
	configuration := "--configDir=" + i.Dir
	if o.Objects != nil {
		configuration = "--configDir="
	}
	cmd := child.Command{Dir: i.scratch.Path(), Argv: []string{o.Binary, "discovery",
		"--registries=Kubernetes", configuration, "--kubeconfig=" + access, "--meshConfig=" + mesh,
		"--networksConfig=" + networks, "--grpcAddr=" + i.XDS, "--httpAddr=" + i.HTTP, "--secureGRPCAddr=", "--httpsAddr=",
		"--monitoringAddr=", "--ctrlz_address=127.0.0.1", "--ctrlz_port=0", "--domain=" + domain, "--clusterID=tare",
		"--shutdownDuration=100ms"}}
	cmd.Env = slices.Concat(environment, o.Environment,
		[]string{"HOME=" + i.scratch.Path(), "TMPDIR=" + i.scratch.Path()})
	if err := child.Start(&i.process, cmd, child.Options{
		Name: "istiod", Log: o.Log, Stop: unix.SIGTERM, Grace: endTimeout, Linger: time.Second,
	}); err != nil {
		return nil, fault.Wrap(err, fault.Machine, o.Binary, "build it with 'make istiod'", "istiod cannot be started")
	}
	i.PID = i.process.PID()
	return i, i.ready(ctx)
}

// environment turns off features that need more than a configuration: issuing certificates, and the exchange of
// metadata between proxies.
var environment = []string{
	"PILOT_CERT_PROVIDER=none", "ENABLE_CA_SERVER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
	"POD_NAMESPACE=" + namespace, "POD_NAME=istiod-tare", "CLUSTER_ID=tare",
	// Changes of files are pushed almost at once. By default istiod waits 100 ms to 10 s for more changes.
	"PILOT_DEBOUNCE_AFTER=10ms", "PILOT_DEBOUNCE_MAX=100ms", "PILOT_ENABLE_EDS_DEBOUNCE=false",
}

const (
	namespace = "istio-system"
	domain    = "cluster.local"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: tare, cluster: {server: "http://%s"}}]
contexts: [{name: tare, context: {cluster: tare, user: tare}}]
current-context: tare
users: [{name: tare, user: {}}]
`

// ready waits until istiod reports that it is ready and accepts connections of proxies.
func (i *Istiod) ready(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("istiod was not ready within %v", readyTimeout))
	defer stop()
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	err := i.process.Await(ctx, 50*time.Millisecond, func() bool {
		r, err := client.Get("http://" + i.HTTP + "/ready")
		if err != nil {
			return false
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return false
		}
		c, err := net.DialTimeout("tcp", i.XDS, time.Second)
		return err == nil && c.Close() == nil
	})
	if err != nil && ctx.Err() != nil {
		err = i.process.WithLastWords(err)
	}
	return fault.Wrap(err, fault.Machine, name, "", "starting istiod")
}

// Watch waits until ctx ends. It returns an error if istiod ends first.
func (i *Istiod) Watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-i.process.Ended():
		return fault.Wrap(i.process.Failure("by itself"), fault.Machine, name, "", "istiod is gone")
	}
}

// Tail returns the end of istiod's output, for error messages.
func (i *Istiod) Tail() string { return i.process.Tail() }

// PutObjects adds objects to the Kubernetes API, or replaces those of the same kinds and names. istiod gets the change
// at once if Options.Objects was set, and otherwise ignores it.
func (i *Istiod) PutObjects(objects ...Object) { i.api.put(objects...) }

// endTimeout is how long istiod may take to end after SIGTERM before it is killed.
const endTimeout = 5 * time.Second

// Close ends istiod and removes its files. A second Close does nothing.
func (i *Istiod) Close() (err error) {
	i.close.Do(func() {
		i.process.Stop()
		if i.api != nil {
			err = i.api.Close()
		}
		err = errors.Join(err, i.scratch.Close())
	})
	return err
}
