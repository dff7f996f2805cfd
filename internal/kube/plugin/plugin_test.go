package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tare/internal/experiment/record"
	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/scale/ledger"
)

// run runs a command line against a cluster that h simulates. If h is nil, there is no cluster.
func run(t *testing.T, h http.Handler, args ...string) (stdout string, err error) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config")
	text := "apiVersion: v1\nkind: Config\n"
	if h != nil {
		server := httptest.NewServer(h)
		defer server.Close()
		text += "current-context: c\nclusters: [{name: c, cluster: {server: \"" + server.URL + "\"}}]\n" +
			"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append(args, "--kubeconfig", config))
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestHelp: each command says what it does and has examples that its command line takes.
func TestHelp(t *testing.T) {
	var names []string
	for _, cmd := range Command().Commands() {
		if cmd.Hidden {
			continue
		}
		names = append(names, cmd.Name())
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s does not explain itself", cmd.Name())
		}
		for line := range strings.Lines(cmd.Example) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " | ")
			line, _, _ = strings.Cut(line, " > ")
			args, ours := strings.CutPrefix(line, "kubectl tare "+cmd.Name())
			if !ours {
				continue
			}
			fresh, _, err := Command().Find([]string{cmd.Name()})
			if err == nil {
				err = fresh.ParseFlags(strings.Fields(args))
			}
			if err == nil {
				err = fresh.ValidateArgs(fresh.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	want := []string{"attach", "clean", "doctor", "install", "run", "top", "uninstall", "weigh"}
	if !slices.Equal(names, want) {
		t.Errorf("commands are %q", names)
	}
}

// TestUsage: wrong use is refused with a hint and exit code 2, before any request to a cluster.
func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"weight", `did you mean "weigh"`},
		{"run", "want one experiment"},
		{"run quickly", "no such experiment"},
		{"run absent.yaml", "the spec cannot be read"},
		{"run quickstart --blocks 0", "--blocks: must be at least 1, got 0"},
		{"attach a b", "want one run"},
		{"_coordinator", "the order of the run is missing"},
		{"weigh x", "unexpected argument"},
		{"weigh --for 1ms", "100ms to 5m"},
		{"weigh --for x", "must be a duration with its unit"},
		{"weigh -o xml", "no such format"},
		{"weigh --by pod", "no such view"},
		{"weigh --shared evenly", "must be apart or spread"},
		{"weigh -l ,,", "not a selector"},
		{"weigh --start-within 1h", "1s to 10m"},
		{"weigh", "no cluster to weigh"},
		{"top --every 1h", "100ms to 5m"},
		{"top --life 1s", "it must be"},
		{"top", "this is not one"},
		{"install", "name the image"},
	} {
		_, err := run(t, nil, strings.Fields(c.args)...)
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error()+fault.HintOf(err), c.want) {
			t.Errorf("%s: %v (%s), exit code %d", c.args, err, fault.HintOf(err), fault.CodeOf(err))
		}
	}
}

// TestSignals: a context tells Ctrl-C from other signals, and a command that was started with nohup ignores SIGHUP.
func TestSignals(t *testing.T) {
	defer signal.Reset(unix.SIGHUP)
	for _, c := range []struct {
		nohup, want bool
		signals     []unix.Signal
	}{
		{false, false, []unix.Signal{unix.SIGINT}},
		{false, true, []unix.Signal{unix.SIGTERM}},
		{false, true, []unix.Signal{unix.SIGHUP}},
		{true, false, []unix.Signal{unix.SIGHUP, unix.SIGINT}},
	} {
		if signal.Reset(unix.SIGHUP); c.nohup {
			signal.Ignore(unix.SIGHUP)
		} else if signal.Ignored(unix.SIGHUP) { // the test itself was started with nohup
			continue
		}
		ctx, stop := withSignals()
		for _, s := range c.signals {
			if err := unix.Kill(os.Getpid(), s); err != nil {
				t.Fatal(err)
			}
		}
		<-ctx.Done()
		if killed(ctx) != c.want || !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("nohup %v, %v: %v", c.nohup, c.signals, context.Cause(ctx))
		}
		stop()
	}
}

// TestRefused: if the API server refuses a request, the error has a hint, and the server's message cannot control the
// terminal.
func TestRefused(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,`+
			`"message":"no \u001b[31m\ntare: forged"}`)
	})
	_, err := run(t, h, "weigh", "--image", "x")
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(fault.HintOf(err), "doctor") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	var b bytes.Buffer
	if fault.Print(&b, err); strings.Contains(b.String(), "\x1b") || strings.Contains(b.String(), "\ntare: forged") {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	if fault.Print(&b, context.Canceled); b.String() != "tare: interrupted\n" || fault.CodeOf(errors.New("")) != 1 {
		t.Errorf("%q", b.String())
	}
}

// TestInstalled: agents are pods that see their node's processes, which a cluster refuses to most users. Where two
// namespaces have agents, neither's are asked, and the user has to choose.
func TestInstalled(t *testing.T) {
	for _, c := range []struct {
		pods map[string]bool // by namespace of a DaemonSet: whether its pod has HostPID
		want string          // namespace of the agents, or the error
	}{
		{nil, ""},
		{map[string]bool{"tare": true}, "tare"},
		{map[string]bool{"tare": true, "posing": false, "shop": false}, "tare"},
		{map[string]bool{"a": true, "posing": false, "b": true}, "tare-agent is installed twice"},
		{map[string]bool{"posing": false}, ""},
	} {
		s := apiServer{}
		for namespace, sees := range c.pods {
			labels := map[string]string{"app.kubernetes.io/name": "tare-agent"}
			set := s.add("daemonsets/"+namespace+"/tare-agent", "", labels, nil)
			set.Object["spec"] = map[string]any{"selector": map[string]any{"matchLabels": labels}, "template": map[string]any{
				"spec": map[string]any{"hostPID": true, "containers": []any{map[string]any{"name": "agent"}}}}}
			pod := s.add("pods/"+namespace+"/tare-agent-n1", "", labels, nil)
			pod.SetOwnerReferences([]metav1.OwnerReference{{UID: set.GetUID(), Controller: new(true)}})
			pod.Object["spec"] = map[string]any{"nodeName": "n1", "hostPID": sees}
		}
		server := httptest.NewServer(s)
		client, err := agents.New(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		_, all, err := client.Find(t.Context(), "")
		server.Close()
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case len(all) > 0:
			got = all[0].Namespace
		}
		if !strings.HasSuffix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want %q", c.pods, got, c.want)
		}
	}
}

// TestNodeJoins: a node that joins the cluster while agents are started is weighed like the others.
func TestNodeJoins(t *testing.T) {
	for _, installed := range []bool{true, false} {
		joined := false
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			kind, version, items := "", "v1", []string{}
			switch path := r.URL.Path; {
			case r.Method == http.MethodPost:
				kind, version = "Job", "batch/v1"
				if strings.HasSuffix(path, "/daemonsets") {
					kind, version = "DaemonSet", "apps/v1"
				}
				_, _ = fmt.Fprintf(w, `{"kind": %q, "apiVersion": %q, "metadata": {"uid": "u"}, "spec": {"selector": {},
					"template": {"spec": {"containers": [{}]}}}}`, kind, version)
				return
			case strings.HasSuffix(path, "/nodes"):
				kind = "NodeList"
				items = append(items, `{"metadata": {"name": "n1"}, "status": {"nodeInfo": {"operatingSystem": "linux"},
					"conditions": [{"type": "Ready", "status": "True"}]}}`)
				if joined {
					items = append(items, strings.Replace(items[0], "n1", "n2", 1))
				}
				joined = true
			case strings.HasSuffix(path, "/daemonsets"):
				kind, version = "DaemonSetList", "apps/v1"
				if installed {
					items = append(items, `{"metadata": {"uid": "u"}, "spec": {"selector": {},
						"template": {"spec": {"hostPID": true, "containers": [{}]}}}}`)
				}
			default:
				kind = "PodList"
				if joined {
					pod := `{"metadata": {"ownerReferences": [{"uid": "u", "controller": true}]}, "spec": {"nodeName": %q,
						"hostPID": true}, "status": {"containerStatuses": [{"state": {"running": {}}}]}}`
					items = append(items, fmt.Sprintf(pod, "n1"), fmt.Sprintf(pod, "n2"))
				}
			}
			_, _ = fmt.Fprintf(w, `{"kind": %q, "apiVersion": %q, "items": [%s]}`, kind, version, strings.Join(items, ","))
		})
		server := httptest.NewServer(h)
		client, err := agents.New(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		s := scope{image: "x", within: 10 * time.Second}
		w, err := s.open(t.Context(), client, time.Minute, io.Discard)
		server.Close()
		if err != nil {
			t.Fatal(err)
		}
		if len(w.agents) != 2 || len(w.nodes) != 2 {
			t.Errorf("installed: %v: %d agents on %d nodes", installed, len(w.agents), len(w.nodes))
		}
	}
}

// TestNoSuchPod: nothing is started for pods that are not there.
func TestNoSuchPod(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/api/v1/pods" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"web","namespace":"shop",`+
			`"labels":{"app":"web"}},"spec":{"nodeName":"n1"}}]}`)
	})
	for _, args := range []string{"-n shopp", "-n shop -l app=cart", "-n shop --owner Deployment/web"} {
		_, err := run(t, h, strings.Fields("weigh --image x "+args)...)
		if fault.CodeOf(err) != fault.Usage || !strings.HasPrefix(err.Error(), args+": ") {
			t.Errorf("%v, exit code %d", err, fault.CodeOf(err))
		}
	}
}

func TestWithout(t *testing.T) {
	for _, c := range []struct {
		n            agents.Node
		failed, want string
	}{
		{agents.Node{OS: "windows"}, "", "the node has windows"},
		{agents.Node{OS: "linux"}, "its agent waits", "not ready"},
		{agents.Node{OS: "linux", Ready: true}, "", "no agent on it"},
		{agents.Node{OS: "linux", Ready: true}, "its agent waits", "its agent waits"},
	} {
		if got := without(&c.n, c.failed); !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c.n, got)
		}
	}
}

func TestEnvironment(t *testing.T) {
	cpus := agents.Node{Name: "w1", Kernel: "6.18.0", Hardware: "A"}
	cpus.Capacity.CPUs = new(4.0)
	got := environmentOf([]agents.Node{cpus, {Name: "w2", Kernel: "6.12.0"}})
	want := record.Environment{Hostname: "cluster of 2 nodes", Kernel: "6.18.0, 6.12.0", CPUs: 4,
		ClusterNodes: map[string]string{"w1": "A", "w2": ""}, Subjects: map[string]string{}}
	if !reflect.DeepEqual(got, want) || !got.InCluster() {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTwoAgents: if a node has two agents, such as while a DaemonSet with maxSurge is updated, one ledger counts,
// whichever agent answers first.
func TestTwoAgents(t *testing.T) {
	l := &ledger.Ledger{Schema: ledger.Schema, Window: ledger.Window{Start: time.Now(), End: time.Now(), Seconds: 1}}
	l.Host.CPUs, l.CPU.Capacity = 1, 1
	good, bad := agents.Answer{Node: "n1", Ledger: l}, agents.Answer{Node: "n1", Failed: "its agent waits"}
	w := windows{scope: &scope{selects: labels.Everything()}, nodes: []agents.Node{{Name: "n1", OS: "linux", Ready: true}}}
	for _, c := range []struct {
		answers  []agents.Answer
		answered int
	}{
		{[]agents.Answer{bad, good}, 1}, {[]agents.Answer{good, bad}, 1}, {[]agents.Answer{good, good}, 1},
		{[]agents.Answer{bad, bad}, 0},
	} {
		answers := make(chan agents.Answer, 2)
		for _, a := range c.answers {
			answers <- a
		}
		close(answers)
		got := w.merge(&agents.Window{Answers: answers}, nil, false)
		if got.Asked != 1 || got.Answered != c.answered || c.answered == 1 && got.Capacity.Capacity != 1 {
			t.Errorf("%+v: %d of %d nodes answered, capacity %v s", c.answers, got.Answered, got.Asked, got.Capacity.Capacity)
		}
	}
}

func TestOlder(t *testing.T) {
	for version, want := range map[string]bool{"4.18.0-553.el8": true, "5.7.9": true, "5.8": false,
		"6.1.0-13-amd64": false, "10.0": false, "odd": false, "": false, "x.y": false} {
		if older(version) != want {
			t.Errorf("%q: %v", version, !want)
		}
	}
}

// TestCredentials: of the flags that kubectl keeps out of its logs, only those with names of files or users stay in the
// record of a run.
func TestCredentials(t *testing.T) {
	recorded := []string{clientcmd.FlagCertFile, clientcmd.FlagKeyFile, clientcmd.FlagImpersonate,
		clientcmd.FlagImpersonateUID, clientcmd.FlagImpersonateGroup}
	got := []string{clientcmd.FlagProxyURL} // http://user:password@proxy
	Command().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if len(f.Annotations["classified"]) > 0 && !slices.Contains(recorded, f.Name) {
			got = append(got, f.Name)
		}
	})
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(credentials)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestServerWithPassword: the address of the API server stays in the record of a run only if it contains no password.
func TestServerWithPassword(t *testing.T) {
	for server, want := range map[string]bool{"https://k8s.example.com:6443": true, "": true,
		"https://ann:secret@k8s.example.com": false, "ann:secret@k8s.example.com": false} {
		var c connection
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.register(fs)
		if err := fs.Parse([]string{"--server", server}); err != nil {
			t.Fatal(err)
		}
		if got := !slices.Contains(c.unrecorded(), "server"); got != want {
			t.Errorf("--server %s: recorded: %v", server, got)
		}
	}
}

// TestFlagsInHelp: a command lists its own flags, and only the root command lists those of kubectl.
func TestFlagsInHelp(t *testing.T) {
	help := func(args ...string) string {
		var out strings.Builder
		root := Command()
		root.SetOut(&out)
		root.SetArgs(append(args, "--help"))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if root := help(); !strings.Contains(root, "--as-group") || !strings.Contains(root, "--kubeconfig") {
		t.Errorf("the root's flags:\n%s", root)
	}
	for _, command := range Command().Commands() {
		if command.Hidden {
			continue
		}
		if said := help(command.Name()); strings.Contains(said, "--as-group") ||
			!strings.Contains(said, "'kubectl tare --help' lists these flags") {
			t.Errorf("%s:\n%s", command.Name(), said)
		}
	}
}
