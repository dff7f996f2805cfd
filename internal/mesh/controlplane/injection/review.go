package injection

import "encoding/json"

// The version and kind of reviews. The types below have only the fields of admission.k8s.io/v1
// (k8s.io/api/admission/v1) and of pods that injection needs. All other fields of a pod stay unchanged, because the
// answer is a patch.
const (
	reviewVersion = "admission.k8s.io/v1"
	reviewKind    = "AdmissionReview"
)

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

type request struct {
	UID         string          `json:"uid"`
	Kind        groupKind       `json:"kind"`
	SubResource string          `json:"subResource"`
	Namespace   string          `json:"namespace"`
	Operation   string          `json:"operation"`
	Object      json.RawMessage `json:"object"`
}

type groupKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

type response struct {
	UID       string            `json:"uid"`
	Allowed   bool              `json:"allowed"`
	Status    *status           `json:"status,omitempty"`
	PatchType string            `json:"patchType,omitempty"`
	Patch     []byte            `json:"patch,omitempty"` // base64 on the wire
	Audit     map[string]string `json:"auditAnnotations,omitempty"`
	Warnings  []string          `json:"warnings,omitempty"`
}

// status gives the reason why a pod is refused. The API server passes it on to the client that tried to create the pod.
type status struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// The fields of a pod that injection reads (k8s.io/api/core/v1).
type pod struct {
	Metadata *metadata `json:"metadata"`
	Spec     *spec     `json:"spec"`
}

type metadata struct {
	Name         string            `json:"name"`
	GenerateName string            `json:"generateName"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
}

type spec struct {
	HostNetwork    bool        `json:"hostNetwork"`
	ServiceAccount string      `json:"serviceAccountName"`
	Containers     []container `json:"containers"`
	InitContainers []container `json:"initContainers"`
	Volumes        []volume    `json:"volumes"`
}

// volume is a volume of a pod or, in a container, the mount of a volume or a device. name is the volume's name.
type volume struct {
	Name string `json:"name"`
}

type container struct {
	Name      string   `json:"name"`
	Ports     []port   `json:"ports"`
	Liveness  *probe   `json:"livenessProbe"`
	Readiness *probe   `json:"readinessProbe"`
	Startup   *probe   `json:"startupProbe"`
	Restart   string   `json:"restartPolicy"` // of init containers: with Always, they keep running
	Mounts    []volume `json:"volumeMounts"`
	Devices   []volume `json:"volumeDevices"`
}

type port struct {
	Name          string `json:"name"`
	ContainerPort int    `json:"containerPort"`
}

type probe struct {
	HTTP    *httpProbe `json:"httpGet"`
	TCP     *tcpProbe  `json:"tcpSocket"`
	GRPC    *grpcProbe `json:"grpc"`
	Timeout int        `json:"timeoutSeconds"`
}

type httpProbe struct {
	tcpProbe
	Path    string `json:"path"`
	Scheme  string `json:"scheme"`
	Headers []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"httpHeaders"`
}

type tcpProbe struct {
	Port json.RawMessage `json:"port"` // a number, or the name of a port of the container
	Host string          `json:"host"`
}

type grpcProbe struct {
	Port    int    `json:"port"`
	Service string `json:"service"`
}
