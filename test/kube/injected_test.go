package kube

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"tare/internal/kube/cluster"
	"tare/test/long"
)

// controlplane is Tare's control plane with its webhook, as docs/injection.md has it. In place of a proxy, the webhook
// injects a container that burns CPU time up to a limit.
const controlplane = `
apiVersion: v1
kind: Namespace
metadata: {name: tare-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mesh, namespace: tare-system}
data:
  mesh.yaml: |
    mtls: strict
    services:
    - {name: web, identity: shop/default, address: 127.0.0.1:8001, endpoints: [{address: 127.0.0.1:8443}]}
    proxies:
    - {id: shop.default, identity: shop/default, inbound: {web: {listen: "0.0.0.0:8443", to: "127.0.0.1:8080"}}}
  pods.yaml: |
    redirect: cni
    sidecar:
      name: mesh-proxy
      image: tare.test/web:1
      args: [burn, "16"]
      resources: {limits: {cpu: 40m, memory: 64Mi}}
---
apiVersion: v1
kind: Service
metadata: {name: controlplane, namespace: tare-system}
spec: {selector: {app: controlplane}, ports: [{port: 9443}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: controlplane, namespace: tare-system}
spec:
  selector: {matchLabels: {app: controlplane}}
  template:
    metadata: {labels: {app: controlplane}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: controlplane
        image: tare-agent:0.1.0
        command: [/usr/bin/tare, controlplane, --human, --config, /etc/mesh/mesh.yaml, --listen, ":18000",
                  --webhook, ":9443", --injection, /etc/mesh/pods.yaml]
        readinessProbe: {tcpSocket: {port: 9443}, periodSeconds: 1}
        volumeMounts: [{name: mesh, mountPath: /etc/mesh}, {name: tmp, mountPath: /tmp}]
      volumes: [{name: mesh, configMap: {name: mesh}}, {name: tmp, emptyDir: {}}]
`

// hook makes the API server call the control plane's webhook. Its %s stands for the CA bundle that the control plane
// prints.
const hook = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mesh-injection}
webhooks:
  - name: injection.mesh.tare
    admissionReviewVersions: [v1]
    clientConfig:
      service: {name: controlplane, namespace: tare-system, path: /, port: 9443}
      caBundle: %s
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
    namespaceSelector:
      matchExpressions:
        - {key: kubernetes.io/metadata.name, operator: In, values: [shop]}
    sideEffects: None
    reinvocationPolicy: IfNeeded
    failurePolicy: Fail
    timeoutSeconds: 10
`

// injectedShop has a Deployment whose pods get a sidecar, and a DaemonSet that serves nodes.
const injectedShop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Namespace
metadata: {name: logging}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
         labelSelector: {matchLabels: {app: web}}}
      containers:
      - {name: web, image: "tare.test/web:1", args: [burn, "32"], resources: {limits: {cpu: 80m, memory: 64Mi}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: fluent-bit, namespace: logging}
spec:
  selector: {matchLabels: {app: fluent-bit}}
  template:
    metadata: {labels: {app: fluent-bit}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: "tare.test/web:1", args: [burn, "16"], resources: {limits: {cpu: 20m, memory: 64Mi}}}
`

var bundle = regexp.MustCompile(`caBundle: (\S+)`)

// must returns the cluster's Apply and Kubectl as functions that fail the test on an error.
func (c *Cluster) must(t *testing.T) (apply func(manifest string), kubectl func(args ...string) string) {
	apply = func(manifest string) {
		t.Helper()
		if err := c.Apply(manifest); err != nil {
			t.Fatal(err)
		}
	}
	kubectl = func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	return apply, kubectl
}

// injects starts a control plane, and makes the API server call its webhook.
func (c *Cluster) injects(t *testing.T, controlplane, hook string) {
	t.Helper()
	apply, kubectl := c.must(t)
	apply(controlplane)
	kubectl("-n", "tare-system", "rollout", "status", "deployment/controlplane", "--timeout=60s")
	log := kubectl("-n", "tare-system", "logs", "deployment/controlplane")
	ca := bundle.FindStringSubmatch(log)
	if ca == nil {
		t.Fatalf("the control plane prints no bundle:\n%s", log)
	}
	apply(fmt.Sprintf(hook, ca[1]))
}

// TestInjected weighs three real nodes on which the API server has Tare's own webhook add a sidecar to the pods of a
// Deployment, beside a DaemonSet of infrastructure and an eBPF program that two pods run.
func TestInjected(t *testing.T) {
	long.Test(t, "1 min: Tare's webhook behind a real API server, and what it injects weighed")
	p := upWithPlugin(t, Options{Nodes: 3, MachineNodes: 1})
	apply, kubectl := p.must(t)
	p.injects(t, controlplane, hook)
	apply(injectedShop)
	kubectl("-n", "logging", "rollout", "status", "daemonset/fluent-bit", "--timeout=60s")
	kubectl("-n", "shop", "rollout", "status", "deployment/web", "--timeout=60s")
	apply(openers) // these are injected, too
	kubectl("-n", "shop", "wait", "--for=condition=Ready", "pod/opener-3", "pod/opener-1", "--timeout=60s")
	if got := kubectl("-n", "shop", "get", "pods", "-l", "app=web", "-o",
		"jsonpath={.items[*].spec.containers[*].name}"); strings.Count(got, "mesh-proxy") != 3 {
		t.Fatalf("containers of the Deployment: %s", got)
	}
	plant(t, "planted_in_pods")

	all := pods(t, p.Cluster)
	c := p.weigh(t, 0, "--for", "10s")
	if c.Answered != 3 {
		t.Fatalf("%d of %d nodes answered", c.Answered, c.Asked)
	}
	for _, w := range c.Warnings {
		t.Logf("warning %s (%d): %s %v", w.Code, w.Count, w.Message, w.About)
	}
	sumsAreExact(t, c)
	everyContainer(t, c, all)

	// The injected container counts as tare of its pod, not as net.
	var net, tare, proxies float64
	for _, r := range c.Containers {
		if r.Namespace != "shop" || r.Workload != "web" {
			continue
		}
		net, tare = net+*r.CPU.Net, tare+*r.CPU.Tare
		switch r.Container {
		case "mesh-proxy":
			proxies += *r.CPU.Gross
			if *r.CPU.Net != 0 || *r.CPU.Tare <= 0 || *r.Hard.Net != 0 || *r.Hard.Tare <= 0 {
				t.Errorf("the sidecar of %s: CPU %+v, memory %+v", r.Pod, r.CPU, r.Hard)
			}
		case "web":
			if *r.CPU.Net <= 0 || *r.CPU.Shared != 0 {
				t.Errorf("%s itself: %+v", r.Pod, r.CPU)
			}
		}
	}
	web := rowOf(t, c.Workloads, "shop", "web")
	if web.Kind != "Deployment" || math.Abs(*web.CPU.Net-net) > 1e-6 || math.Abs(*web.CPU.Tare-tare) > 1e-6 {
		t.Errorf("%s web: %+v, its containers %v net and %v tare", web.Kind, web.CPU, net, tare)
	}
	// Application and sidecar burn as much as their limits let them, which are 80m and 40m.
	if ratio := proxies / *web.CPU.Net; ratio < 0.4 || ratio > 0.6 {
		t.Errorf("the sidecars used %.3f s, and the application %.3f s: not half of it", proxies, *web.CPU.Net)
	}
	t.Logf("shop/web: gross %.3f s = net %.3f s + tare %.3f s, of which sidecars %.3f s", *web.CPU.Gross, *web.CPU.Net,
		*web.CPU.Tare, proxies)
	for _, r := range c.Components {
		if r.Component == "sidecar" && r.CPU.TareKnown() < proxies-1e-9 {
			t.Errorf("all sidecars used %v s, those of one workload %v s", r.CPU.TareKnown(), proxies)
		}
		if r.Component == "logging" && (r.CPU.TareKnown() <= 0 || r.CPU.NetKnown() != 0) {
			t.Errorf("the DaemonSet that serves nodes: %+v", r.CPU)
		}
	}
	unexplained(t, c)
}

// sumsAreExact: gross = net + tare in each row, and the rows of each view add up to the total, to the nanosecond. If a
// group ended in the window, a figure may be unknown; then the known ones add up.
func sumsAreExact(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ns := func(v float64) int64 { return int64(math.Round(v * 1e9)) }
	for _, view := range cluster.Views() {
		sum := int64(0)
		for _, r := range c.By(view) {
			sum += ns(r.CPU.NetKnown()) + ns(r.CPU.TareKnown())
			if u := r.CPU; u.Gross != nil && u.Net != nil && u.Tare != nil && ns(*u.Gross) != ns(*u.Net)+ns(*u.Tare) {
				t.Errorf("%+v: gross is not net + tare", r)
			}
		}
		if d := sum - ns(c.Total.CPU.NetKnown()) - ns(c.Total.CPU.TareKnown()); d != 0 {
			t.Errorf("rows of %s add up to %d ns more than the total", view, d)
		}
	}
}

// everyContainer: each container of each pod has a row with its name.
func everyContainer(t *testing.T, c *cluster.Cluster, all []pod) {
	t.Helper()
	rows := map[[3]string]bool{}
	for _, r := range c.Containers {
		rows[[3]string{r.Namespace, r.Pod, r.Container}] = true
	}
	for _, p := range all {
		for _, x := range p.Spec.Containers {
			if !rows[[3]string{p.Metadata.Namespace, p.Metadata.Name, x.Name}] {
				t.Errorf("container %s of %s/%s has no row", x.Name, p.Metadata.Namespace, p.Metadata.Name)
			}
		}
	}
}

func rowOf(t *testing.T, rows []*cluster.Row, namespace, workload string) *cluster.Row {
	t.Helper()
	for _, r := range rows {
		if r.Namespace == namespace && r.Workload == workload {
			return r
		}
	}
	t.Fatalf("no row of %s/%s", namespace, workload)
	return nil
}

// unexplained: at most 3 % of the capacity is unexplained, for the machine and for each node that has a machine to
// itself.
func unexplained(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	budgets := map[string]*cluster.Budget{}
	for i := range c.Machines {
		budgets["the machine"] = &c.Machines[i].Budget
	}
	for i := range c.Nodes {
		if b := c.Nodes[i].Budget; b != nil {
			budgets[c.Nodes[i].Name] = b
		}
	}
	if len(budgets) == 0 {
		t.Error("there is no budget")
	}
	for of, b := range budgets {
		t.Logf("%s: %.2f %% of %.1f s unexplained", of, 100*b.Unexplained/b.Capacity, b.Capacity)
		if math.Abs(b.Unexplained) > 0.03*b.Capacity {
			t.Errorf("%s: %.3f s of %.1f s are unexplained", of, b.Unexplained, b.Capacity)
		}
	}
}
