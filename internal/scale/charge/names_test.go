package charge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/names"
	"tare/internal/scale/ledger"
)

// box is a container of a pod, with the names in its engine's files; "(sandbox)" is the one that holds the pod open.
type box struct{ namespace, pod, container, labels string }

// layouts are the ways in which kubelets and engines arrange the groups of pods. Pods are numbered with two digits.
var layouts = map[string]struct {
	pod, container string // paths
	file, text     string // of the engine's file about a container
}{
	"containerd, systemd": {
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod$UID_.slice", "/cri-containerd-$ID.scope",
		"/run/containerd/io.containerd.runtime.v2.task/k8s.io/$ID/config.json", containerdText},
	"containerd, cgroupfs": {"/kubepods/besteffort/pod$UID", "/$ID",
		"/run/containerd/io.containerd.runtime.v2.task/k8s.io/$ID/config.json", containerdText},
	"CRI-O": {"/kubepods.slice/kubepods-pod$UID_.slice", "/crio-$ID.scope",
		"/run/containers/storage/overlay-containers/$ID/userdata/config.json",
		`{"annotations": {"io.kubernetes.cri-o.ContainerType": "$TYPE", "io.kubernetes.container.name": "$CONTAINER",
		"io.kubernetes.cri-o.Metadata": "{\"name\":\"$CONTAINER\"}", "io.kubernetes.cri-o.Labels": "$LABELS",
		"io.kubernetes.cri-o.KubeName": "$POD", "io.kubernetes.cri-o.Namespace": "$NAMESPACE",
		"io.kubernetes.pod.name": "$POD", "io.kubernetes.pod.namespace": "$NAMESPACE"}}`},
}

const containerdText = `{"annotations": {"io.kubernetes.cri.container-type": "$TYPE",
	"io.kubernetes.cri.container-name": "$CONTAINER",
	"io.kubernetes.cri.sandbox-name": "$POD", "io.kubernetes.cri.sandbox-namespace": "$NAMESPACE"}}`

// node returns the ledger of a node with the boxes and further groups, and the processes that run there: the pause
// process of each sandbox. If mounted is true, groups have the names in the engine's files.
func node(t *testing.T, layout string, boxes []box, mounted bool, further ...string) (*ledger.Ledger, []Process) {
	t.Helper()
	shape, root := layouts[layout], t.TempDir()
	l := &ledger.Ledger{Programs: []ledger.Program{}, Maps: []ledger.Map{}}
	var running []Process
	add := func(path string) {
		for _, g := range l.Cgroups {
			if g.Path == path {
				return
			}
		}
		cpu, hard := 1.0, int64(100)
		l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: path, CPUSeconds: &cpu, Memory: &ledger.Memory{Hard: &hard}})
	}
	pods := map[string]int{}
	for i, b := range boxes {
		key := b.namespace + "/" + b.pod
		if pods[key] == 0 {
			pods[key] = len(pods) + 1
		}
		uid := fmt.Sprintf("6f2f4b1c-92a0-4c63-8d0e-0d5b7f3a9e%02d", pods[key])
		kind := "container"
		if b.container == names.Sandbox {
			kind = "sandbox"
		}
		words := strings.NewReplacer("$UID_", strings.ReplaceAll(uid, "-", "_"), "$UID", uid, "$ID",
			fmt.Sprintf("%064x", 0xa0+i), "$TYPE", kind, "$CONTAINER", b.container, "$POD", b.pod, "$NAMESPACE", b.namespace,
			"$LABELS", strings.ReplaceAll(b.labels, `"`, `\"`))
		if mounted {
			file := filepath.Join(root, words.Replace(shape.file))
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(words.Replace(shape.text)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		group := words.Replace(shape.pod + shape.container)
		add(words.Replace(shape.pod))
		add(group)
		comm := b.container
		if kind == "sandbox" {
			comm = "pause"
		}
		running = append(running, Process{len(running) + 1, comm, group})
	}
	for _, path := range further {
		add(path)
		running = append(running, Process{len(running) + 1, filepath.Base(path), path})
	}
	names.Open(names.Options{Root: root}).Fill(l)
	return l, running
}

// byName lists the charges of groups: containers by name, and other groups by path.
func byName(l *ledger.Ledger) string {
	named := &ledger.Ledger{}
	for _, g := range l.Cgroups {
		if n := g.Name; n != nil && n.Pod != "" && n.Unit == "" {
			g.Path = strings.TrimSuffix(n.Namespace+"/"+n.Pod+"/"+n.Container, "/")
		}
		named.Cgroups = append(named.Cgroups, g)
	}
	return chargesOf(named)
}

var shop = []box{
	{"shop", "web-0", "(sandbox)", `{"app":"web"}`}, {"shop", "web-0", "nginx", `{"app":"web"}`},
	{"shop", "web-0", "istio-proxy", `{"app":"web"}`}, {"bank", "db-0", "postgres", `{"app":"db","tier":"data"}`},
}

// TestNames: rules that select by name have the same effect in all layouts of paths.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		rules, want string
		warnings    string // codes
	}{
		{"workload shop=namespace=shop", "shop/web-0:shop shop/web-0/(sandbox):shop shop/web-0/nginx:shop " +
			"shop/web-0/istio-proxy:shop", ""},
		{"workload shop=namespace=shop|tare container=istio-proxy,component=sidecar", "shop/web-0:shop " +
			"shop/web-0/(sandbox):shop shop/web-0/nginx:shop shop/web-0/istio-proxy:tare.shop.sidecar", ""},
		{"workload web=pod=web-*,container=nginx", "shop/web-0/nginx:web", ""},
		{"load namespace=bank,container=istio-proxy", "", "rule-unused"},
		{"workload {namespace}/{pod}=namespace=*", "shop/web-0:shop/web-0 shop/web-0/(sandbox):shop/web-0 " +
			"shop/web-0/nginx:shop/web-0 shop/web-0/istio-proxy:shop/web-0 bank/db-0:bank/db-0 bank/db-0/postgres:bank/db-0",
			""},
		{"workload db=namespace=bank|workload {namespace}=pod=*", "shop/web-0:shop shop/web-0/(sandbox):shop " +
			"shop/web-0/nginx:shop shop/web-0/istio-proxy:shop bank/db-0:db bank/db-0/postgres:db", ""},
		{"tare unit=kubelet.service,component=kubelet|tare unit=*,component=other",
			"/system.slice/kubelet.service:tare.kubelet", "rule-unused"},
		{"workload x={container}=namespace=shop", "", "parse"},
		{"workload {container}=namespace=bank", "", "rule-unused"}, // a pod is called after no container
		{"workload {container}=container=*gres", "bank/db-0/postgres:postgres", ""},
		{"tare container=(sandbox),comm=pause", "shop/web-0/(sandbox):tare", ""},
		{"tare container=nginx,comm=pause", "", "rule-unused"},
		{"tare namespace=nosuch", "", "rule-unused"},
	} {
		for name := range layouts {
			if c.warnings == "parse" {
				if _, err := ParseFlag(ledger.ChargeWorkload, strings.TrimPrefix(c.rules, "workload ")); err == nil {
					t.Errorf("%s: no error", c.rules)
				}
				continue
			}
			l, running := node(t, name, shop, true, "/", "/system.slice/kubelet.service")
			Apply(mustParse(t, strings.Split(c.rules, "|")...), l, running)
			var codes []string
			for _, w := range l.Warnings {
				codes = append(codes, w.Code)
			}
			if got := byName(l); got != c.want || strings.Join(codes, " ") != c.warnings {
				t.Errorf("%s, %s:\n got %s\nwant %s\nwarnings %+v, want %s", name, c.rules, got, c.want, l.Warnings,
					c.warnings)
			}
		}
	}
}

// TestNamesWithPaths: cgroup= selects groups by path, and names narrow that selection.
func TestNamesWithPaths(t *testing.T) {
	const pod = "/kubepods/besteffort/pod6f2f4b1c-92a0-4c63-8d0e-0d5b7f3a9e01"
	inner := pod + "/" + fmt.Sprintf("%064x", 0xa1) + "/init"
	l, running := node(t, "containerd, cgroupfs", shop, true, inner)
	Apply(mustParse(t, "tare cgroup=/**/init,container=nginx", "load cgroup=/**/init,container=postgres"), l, running)
	if got := chargesOf(l); got != inner+":tare" {
		t.Error(got)
	}
}

// TestLabels: CRI-O keeps labels and containerd does not, as a warning says.
func TestLabels(t *testing.T) {
	for name, want := range map[string]string{
		"CRI-O":                "shop/web-0:web shop/web-0/(sandbox):web shop/web-0/nginx:web shop/web-0/istio-proxy:web ",
		"containerd, cgroupfs": " --workload 'web=label=app=w*' matches nothing, and no container here has labels",
	} {
		l, running := node(t, name, shop, true)
		Apply(mustParse(t, "workload web=label=app=w*"), l, running)
		got := byName(l) + " "
		for _, w := range l.Warnings {
			got += w.Message
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestUnusedRulesByName: a warning says why a rule that selects by name charges nothing. It does not blame the rule if
// no name or label could be read.
func TestUnusedRulesByName(t *testing.T) {
	for _, c := range []struct {
		name, layout string
		boxes        []box
		mounted      bool
		rules, says  string
	}{
		{"no name could be read", "containerd, systemd", shop, false, "workload shop=namespace=shop",
			"--workload 'shop=namespace=shop' matches no container whose name is known, and 4 containers without one may be " +
				"meant: other warnings say what to mount or permit"},
		{"units need no file", "containerd, systemd", shop, false, "tare unit=x.service",
			"--tare 'unit=x.service' matches no control group of such a unit"},
		{"no such container", "containerd, cgroupfs", shop, true, "tare container=nosuch",
			"--tare 'container=nosuch' matches no container"},
		{"no such namespace", "CRI-O", shop, true, "tare namespace=nosuch",
			"--tare 'namespace=nosuch' matches no pod or container"},
		{"no such label", "CRI-O", shop, true, "tare label=app=nosuch",
			"--tare 'label=app=nosuch' matches no pod or container"},
		{"labels are not kept", "containerd, systemd", shop, true, "tare label=app=web",
			"--tare 'label=app=web' matches nothing, and no container here has labels: containerd and Podman keep none where " +
				"they can be read; select by namespace=, pod= or container="},
		{"there are no containers", "containerd, systemd", nil, true, "tare label=app=web",
			"--tare 'label=app=web' matches no pod or container"},
		{"an earlier rule has it", "CRI-O", shop, true, "tare container=ng*|tare container=nginx",
			"--tare 'container=nginx' charges nothing: all that it matches belongs to rules before it, or to tare itself"},
		{"used", "CRI-O", shop, true, "tare container=nginx", ""},
	} {
		l, running := node(t, c.layout, c.boxes, c.mounted)
		Apply(mustParse(t, strings.Split(c.rules, "|")...), l, running)
		var got []string
		for _, w := range l.Warnings {
			if w.Code == "rule-unused" {
				got = append(got, w.Message)
			}
		}
		if strings.Join(got, "|") != c.says {
			t.Errorf("%s: %q, want %q", c.name, got, c.says)
		}
	}
}

// TestKubernetesProfile: the profile charges each part of a node to the component that a platform engineer would
// expect.
func TestKubernetesProfile(t *testing.T) {
	profile, err := Profile("kubernetes", "--profile")
	if err != nil {
		t.Fatal(err)
	}
	boxes := append([]box{
		{"kube-system", "etcd-n1", "etcd", "{}"}, {"kube-system", "kube-proxy-x2x", "kube-proxy", "{}"},
		{"kube-system", "coredns-5d", "coredns", "{}"}, {"kube-system", "kindnet-9", "kindnet-cni", "{}"},
		{"kube-system", "other-1", "other", "{}"}, {"istio-system", "istiod-1", "discovery", "{}"},
		{"istio-system", "gateway-1", "istio-proxy", "{}"}, {"capi-system", "capi-1", "manager", "{}"},
		{"shop", "node-exporter-1", "kubelet", "{}"}, {"bank", "hostile-1", "kubelet", "{}"},
		{"bank", "hostile-1", "pause", "{}"},
	}, shop...)
	for name := range layouts {
		l, running := node(t, name, boxes, true, "/", "/system.slice", "/system.slice/kubelet.service",
			"/system.slice/containerd.service", "/system.slice/ssh.service", "/user.slice", "/node/kubelet",
			"/node/containerd")
		running = append(running, Process{len(running) + 1, "containerd-shim", "/node/containerd"})
		Apply(append(mustParse(t, "workload bank=namespace=bank"), profile...), l, running)
		const want = "kube-system/etcd-n1:tare.controlplane kube-system/etcd-n1/etcd:tare.controlplane " +
			"kube-system/kube-proxy-x2x:tare.kube-proxy kube-system/kube-proxy-x2x/kube-proxy:tare.kube-proxy " +
			"kube-system/coredns-5d:tare.dns kube-system/coredns-5d/coredns:tare.dns kube-system/kindnet-9:tare.cni " +
			"kube-system/kindnet-9/kindnet-cni:tare.cni kube-system/other-1:tare.system kube-system/other-1/other:tare.system " +
			"istio-system/istiod-1:tare.mesh istio-system/istiod-1/discovery:tare.mesh istio-system/gateway-1:tare.mesh " +
			"istio-system/gateway-1/istio-proxy:tare.gateway capi-system/capi-1:tare.system " +
			"capi-system/capi-1/manager:tare.system shop/node-exporter-1:tare.monitoring " +
			"shop/node-exporter-1/kubelet:tare.monitoring bank/hostile-1:bank bank/hostile-1/kubelet:bank " +
			"bank/hostile-1/pause:bank shop/web-0:shop/web-0 shop/web-0/(sandbox):tare.shop/web-0.pause " +
			"shop/web-0/nginx:shop/web-0 shop/web-0/istio-proxy:tare.shop/web-0.sidecar bank/db-0:bank " +
			"bank/db-0/postgres:bank /system.slice:tare.node /system.slice/kubelet.service:tare.kubelet " +
			"/system.slice/containerd.service:tare.runtime /system.slice/ssh.service:tare.node /node/kubelet:tare.kubelet " +
			"/node/containerd:tare.runtime"
		if got := byName(l); got != want || len(l.Warnings) > 0 {
			t.Errorf("%s:\n got %s\nwant %s\n%+v", name, got, want, l.Warnings)
		}
		for _, g := range l.Cgroups {
			if g.Name != nil && g.Name.Container == "nginx" &&
				!(strings.HasPrefix(g.Rule, "profile kubernetes:") && strings.HasSuffix(g.Rule, " namespace=*")) {
				t.Errorf("nginx: %q", g.Rule)
			}
		}
		for _, w := range l.Workloads {
			if *w.GrossCPU != *w.NetCPU+*w.TareCPU {
				t.Errorf("%+v", w)
			}
		}
	}
	for name, hint := range map[string]string{
		"kubernets": "did you mean kubernetes?", "./mine.yaml": "--rules ./mine.yaml",
	} {
		if _, err := Profile(name, "--profile "+name); err == nil || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%s: %+v", name, err)
		}
	}
}

// BenchmarkProfile charges a full node: 250 pods with a sidecar.
func BenchmarkProfile(b *testing.B) {
	profile, err := Profile("kubernetes", "--profile")
	if err != nil {
		b.Fatal(err)
	}
	l := &ledger.Ledger{Programs: []ledger.Program{}, Maps: []ledger.Map{}}
	cpu := 1.0
	for i := range 250 {
		pod := ledger.Name{Namespace: "shop", Pod: fmt.Sprintf("web-%d", i), Top: fmt.Sprintf("/kubepods/pod%d", i)}
		add := func(n ledger.Name) {
			l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: n.Top, Name: &n, CPUSeconds: &cpu})
		}
		add(pod)
		for _, c := range []string{"app", "istio-proxy", "(sandbox)"} {
			of := pod
			of.Container, of.Top = c, pod.Top+"/"+c
			add(of)
		}
	}
	for b.Loop() {
		for i := range l.Cgroups {
			l.Cgroups[i].Charged = ledger.Charged{}
		}
		l.Warnings = nil
		Apply(profile, l, nil)
		l.AddComponents()
	}
}
