package pods

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"strconv"
	"strings"

	api "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/part"
	"tare/internal/kube/agents"
)

// container is the name of the container that plays a part. Other containers in its pod are not Tare's.
const container = "tare"

const sandbox = "(sandbox)" // as in ledger.Name.Container

// appPort is the port of applications in their pods, and of their Services.
const appPort = 8080

// partUser is an unprivileged user, for images whose user is root.
const partUser = 65534

// podSpec returns the spec for a process without privileges, which satisfies the Pod Security level "restricted".
func podSpec(image string, command ...string) api.PodSpec {
	return api.PodSpec{
		RestartPolicy: api.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &api.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(partUser)),
			SeccompProfile: &api.SeccompProfile{Type: api.SeccompProfileTypeRuntimeDefault}},
		Containers: []api.Container{{
			Name: container, Image: image, Command: command,
			SecurityContext: &api.SecurityContext{AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &api.Capabilities{Drop: []api.Capability{"ALL"}}},
		}},
	}
}

// pod returns the pod of one part of a trial. marks is nil if no subject applies to the part. If node is empty, the pod
// may run on any node.
func (p *Place) pod(trial, name string, of *kind.Part, marks *kind.Marks, node string) *api.Pod {
	pod := &api.Pod{ObjectMeta: p.meta(p.objectName(trial, name)), Spec: podSpec(p.o.Image, "/usr/bin/tare",
		part.Command)}
	pod.Spec.Containers[0].Env = []api.EnvVar{{Name: part.TokenVariable, ValueFrom: &api.EnvVarSource{
		SecretKeyRef: &api.SecretKeySelector{LocalObjectReference: api.LocalObjectReference{Name: p.o.Owned.Name},
			Key: tokenKey}}}, {Name: part.PodVariable, Value: pod.Name}}
	maps.Copy(pod.Labels, map[string]string{trialLabel: trial, partLabel: name})
	whole, _, _ := strings.Cut(name, "_") // copies have the account of the part
	if account := p.o.Accounts[whole]; account != "" {
		pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = account, new(true)
	}
	if node != "" {
		pod.Spec.Affinity = &api.Affinity{NodeAffinity: &api.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &api.NodeSelector{
				NodeSelectorTerms: []api.NodeSelectorTerm{named(api.NodeSelectorOpIn, node)}}}}
	}
	limits := api.ResourceList{}
	if cpus := of.Limits.Float("cpus"); cpus > 0 {
		limits[api.ResourceCPU] = *resource.NewMilliQuantity(int64(math.Round(1000*cpus)), resource.DecimalSI)
	}
	if memory := of.Limits.Float("memory"); memory > 0 {
		limits[api.ResourceMemory] = *resource.NewQuantity(int64(memory), resource.BinarySI)
	}
	pod.Spec.Containers[0].Resources = api.ResourceRequirements{Limits: limits}
	if marks != nil {
		for key, value := range marks.Labels {
			if _, ours := pod.Labels[key]; !ours {
				pod.Labels[key] = value
			}
		}
		maps.Copy(pod.Annotations, marks.Annotations)
		if marks.RuntimeClass != "" {
			pod.Spec.RuntimeClassName = &marks.RuntimeClass
			// A sandbox may have a separate network stack. Its loopback interface cannot be reached by port forwarding, so the
			// part listens at all addresses.
			pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, api.EnvVar{Name: part.OpenVariable, Value: "1"})
		}
	}
	return pod
}

// named returns a term for nodes whose names are In or NotIn the given ones. The label kubernetes.io/hostname may
// differ from a node's name.
func named(op api.NodeSelectorOperator, names ...string) (t api.NodeSelectorTerm) {
	for _, name := range names {
		t.MatchFields = append(t.MatchFields, api.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: op,
			Values: []string{name}})
	}
	return t
}

// maxName is the longest name of a Service, and the longest hostname of a pod (RFC 1123, section 2.1).
const maxName = 63

// objectName returns the name of the pod or the Service of a part in a trial. The end of a name that is too long, as of
// a repeated trial with a part of 40 letters, is replaced by a hash of all of it.
func (p *Place) objectName(trial, name string) string {
	whole := p.o.Owned.Name + "-" + trial + "-" + strings.ReplaceAll(name, "_", "-")
	if len(whole) <= maxName {
		return whole
	}
	hash := sha256.Sum256([]byte(whole))
	end := "-" + hex.EncodeToString(hash[:5])
	return whole[:maxName-len(end)] + end
}

// service returns the Service of an application. A mesh may route only by Services.
func (p *Place) service(trial, name string, of *kind.Part) *api.Service {
	meta := p.meta(p.objectName(trial, name))
	meta.Labels[trialLabel] = trial
	port := api.ServicePort{Name: "app", Port: appPort, TargetPort: intstr.FromInt32(appPort)}
	if says := of.Kind.About().AppProtocol; says != nil {
		port.AppProtocol = new(says(of.Options))
	}
	return &api.Service{ObjectMeta: meta, Spec: api.ServiceSpec{
		Selector: map[string]string{agents.InstanceLabel: p.o.Owned.Name, trialLabel: trial, partLabel: name},
		Ports:    []api.ServicePort{port},
	}}
}

// trialName returns the name of the objects of an attempt at a trial.
func trialName(index, attempt int) string {
	if attempt > 0 {
		return strconv.Itoa(index) + "-again-" + strconv.Itoa(attempt)
	}
	return strconv.Itoa(index)
}
