package sandbox

// podPaths are the paths of Kubernetes pods.
var podPaths = []pathRule{
	{
		Match: expr(`(?:.*-)?kubepods(?:-burstable|-besteffort|-guaranteed)?-pod(?P<pod>{uid})\.slice`),
		Place: PlacePod, Driver: "systemd",
	},
	{Match: expr("pod(?P<pod>{uid})"), Place: PlacePod, Driver: "cgroupfs"},
	// Some runtimes use systemd's notation as the name of a directory: runc if the kubelet has the systemd driver and
	// containerd does not, and Kata's Go runtime (kata-containers#11325).
	{
		Match: expr(`(?:.*-)?kubepods(?:-burstable|-besteffort|-guaranteed)?-pod(?P<pod>{uid})\.slice:` +
			"[^/:]*:(?P<id>{id})"),
		Place: PlaceLiteral, Flavour: "go", Driver: "systemd",
	},
}

// otherPaths are tried after the paths of all engines and runtimes.
var otherPaths = []pathRule{
	// systemd's notation of a group, used as the name of a directory
	{Match: expr(`[^/]*\.slice:[^/:]*:(?P<id>{id})`), Place: PlaceLiteral, Driver: "systemd"},
	{Match: expr("(?P<id>{hex})"), Place: PlaceContainer, Driver: "cgroupfs"},
	// Whatever an unknown engine puts before the id, even without a separator.
	{Match: expr(`.*[^0-9a-f](?P<id>{hex})\.scope`), Not: expr(".*conmon-.*"), Place: PlaceContainer, Driver: "systemd"},
	{Match: expr(`.*[^0-9a-f](?P<id>{hex})`), Not: expr(".*conmon-.*"), Place: PlaceContainer, Driver: "cgroupfs"},
	// Tare's own runs: the container of a trial is named after the trial and its part (internal/sandboxes/subject).
	{Match: expr("(?P<id>tare-[a-z0-9-]+-p[0-9]+-t[0-9]+-{id})"), Place: PlaceContainer, Driver: "cgroupfs"},
	{Match: expr(`user@[0-9]+\.service`), Place: PlaceOther},
	{Match: expr(`[^/]+\.service`), Place: PlaceService},
}

// bundles are configurations of containers in a place shared by several engines.
var bundles = []stateFiles{{
	Dirs: []string{"/run/containers/storage/overlay-containers"}, File: "{id}/userdata/config.json", Parse: parseOCI,
}}

// The programs of virtual machines, which several runtimes start.
const (
	qemu            = "qemu-(?:system-[a-z0-9_]+|kvm|lite.*)"
	cloudHypervisor = "(?:cloud-hypervisor|clh)"
	virtiofsd       = "(?:virtiofsd|nydusd)"
)

// otherVM stands for the runtime of a virtual machine if only the VMM is known.
var otherVM = runtime{Name: "other vm", VM: true, GuestMemory: []Component{VMM, Virtiofsd}}

// otherProcesses are tried after the processes of all runtimes.
var otherProcesses = []processRule{
	{
		Program: expr("containerd-shim-[a-z0-9-]+"), Component: Shim, Required: true,
		ID: []idSource{{Flag: "-id"}},
	},
	// Tare's own runs: the process beside a container of any runtime (internal/sandboxes/oci).
	{
		Program: expr("tare(?:-[a-z0-9-]+)?"), Args: expr("[^ ]+ _shim(?: .*)?"), Component: Shim,
		Required: true, ID: []idSource{{Flag: "-id"}},
	},
	{
		Program: expr(qemu), Component: VMM, Required: true, Threads: true,
		ID: []idSource{{Flag: "-name", Match: expr("(?:guest=)?sandbox-(?P<id>{id})(?:,.*)?")}},
	},
	{
		Program: expr("conmon(?:rs)?"), Component: Monitor, Required: true,
		ID: []idSource{{Flag: "-c"}, {Flag: "--cid"}},
	},
	{Program: expr("(?:containerd|crio|dockerd|podman|k3s|kubelet)"), Component: Engine, Shared: true},
	// Kernel threads that work for one process, with its PID in their names (drivers/vhost/vhost.c, arch/x86/kvm).
	{Comm: expr("vhost-(?P<pid>[0-9]+)"), Component: IO, Kernel: true},
	{Comm: expr("kvm-pit/(?P<pid>[0-9]+)"), Component: VMM, Kernel: true},
	{Comm: expr("kvm-nx-lpage-re(?:covery-(?P<pid>[0-9]+))?"), Component: VMM, Kernel: true},
	// A process that holds a sandbox open, or starts a container, is not its application.
	{Program: expr("pause"), Component: Init, Inside: true},
	{
		Program: expr("(?:catatonit|tini|tini-static|docker-init|dumb-init|podman-init)"), Component: Init,
		Inside: true,
	},
	{Program: expr("pod"), Args: expr("/usr/bin/pod"), Component: Init, Inside: true},
}

// vmThreads are the threads of QEMU (with -name ...,debug-threads=on, or one thread for all CPUs) and Cloud
// Hypervisor.
var vmThreads = []threadRule{
	{Comm: expr("CPU [0-9]+/(?:KVM|TCG|HVF)"), Component: VCPU},
	{Comm: expr("ALL CPUs/TCG"), Component: VCPU},
	{Comm: expr("vcpu[0-9]+"), Component: VCPU},
	{Comm: expr("(?:IO .*|iothread.*|worker|vhost-[0-9]+|iou-wrk-[0-9]+)"), Component: IO},
	{Comm: expr("_?(?:disk|net|fs|vsock|pmem|console|balloon|watchdog|rng)[0-9_].*"), Component: IO},
}

// annotations are the keys, in OCI configurations or Docker's labels, of a container's owner, name and declared
// overhead. Earlier keys take precedence. Sources: containerd (internal/cri/annotations), CRI-O (pkg/annotations of
// podman, and the kubelet's labels), cri-dockerd, nerdctl.
var annotations = struct {
	Sandbox, PodUID, PodName, PodNamespace []string

	Container    []string // its name
	Image        []string
	Type         []string // what kind of container it is
	SandboxTypes []string // values of Type for a container that holds a pod open, or for the virtual machine of a pod
	Labels       []string // JSON, an object of strings

	Overhead      []string // JSON, memory_limit_in_bytes
	SandboxMemory []string // bytes: the sum of the limits of its containers, without overhead
}{
	Sandbox: []string{"io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID", "io.kubernetes.sandbox.id"},
	PodUID:  []string{"io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"},
	PodName: []string{"io.kubernetes.cri.sandbox-name", "io.kubernetes.cri-o.KubeName", "io.kubernetes.pod.name"},
	PodNamespace: []string{
		"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri-o.Namespace", "io.kubernetes.pod.namespace",
	},
	Container: []string{"io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"},
	Image: []string{
		"io.kubernetes.cri.image-name", "io.kubernetes.cri.podsandbox.image-name", "io.kubernetes.cri-o.ImageName",
		"io.kubernetes.cri-o.Image",
	},
	Type: []string{
		"io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType", "io.kubernetes.docker.type",
	},
	SandboxTypes:  []string{"sandbox", "podsandbox"},
	Labels:        []string{"io.kubernetes.cri-o.Labels"},
	Overhead:      []string{"pod-linux-overhead.crio.io", "io.kubernetes.cri-o.PodLinuxOverhead"},
	SandboxMemory: []string{"io.kubernetes.cri.sandbox-memory"},
}

// otherRows are arrangements without a specific runtime or engine. They are tried after the rows of all runtimes and
// engines.
var otherRows = []row{
	{
		Name: "containerd-cgroupfs", Title: "containerd, cgroupfs driver: <pod>/<id>", Driver: "cgroupfs",
		EngineNot: []string{"cri-o"}, Pod: new(true),
		Memory: charged{Workload: {PlaceContainer}},
	},
	{
		Name: "literal", Title: "the runtime took systemd's notation of a group for the name of a directory",
		Driver: "systemd", Memory: charged{Workload: {PlaceLiteral}},
	},
	{
		Name: "direct", Title: "a group that its state alone names, as without an engine", Pod: new(false), Plain: true,
		Has: []Component{Workload},
	},
}

// commonFindings are about components that several runtimes have.
var commonFindings = []findingRule{
	{
		Code: "application-not-found", Components: []Component{Shim, Monitor}, Alone: true,
		Says: "the {component} of sandbox {sandbox} runs, and no application was found: it has ended, or it is " +
			"in a group that does not name its container, and what it uses is not listed here",
	},
	{
		Code: "cpu-apart-from-memory", Hierarchy: "v1", Components: []Component{VCPU},
		CPU:          []Place{PlaceSandbox, PlaceContainer, PlacePod, PlaceOwn},
		LeaderMemory: []Place{PlaceOverhead, PlaceService, PlaceRoot, PlaceOther},
		Says: "sandbox {sandbox}: CPU is charged to {cpu} but memory to {memory}: on cgroup v1 only the vCPU " +
			"threads were moved, and memory follows the thread-group leader",
	},
	{
		Code: "literal-directory", Components: []Component{VMM}, Any: []Place{PlaceLiteral},
		Says: "the {component} of sandbox {sandbox} ({size}) is in {memory}: the runtime used systemd's " +
			"notation as the name of a directory, so its pod's limits do not apply to it and its pod's " +
			"statistics leave it out",
	},
	{
		Code: "literal-directory", Components: []Component{VCPU}, Any: []Place{PlaceLiteral},
		Says: "vCPU threads of sandbox {sandbox} are in {cpu}: the runtime used systemd's notation as the name " +
			"of a directory, so its pod's limits do not apply to them and its pod's statistics leave them " +
			"out",
	},
	{
		Code: "mischarged", Components: []Component{VMM}, Memory: []Place{PlaceService, PlaceRoot, PlaceOther},
		Says: "the {component} of sandbox {sandbox} ({size}) is charged to {memory}, outside {owner}",
	},
	{
		Code: "mischarged", Components: []Component{Virtiofsd}, Memory: []Place{PlaceService, PlaceRoot, PlaceOther},
		Says: "the {component} of sandbox {sandbox} ({size}) is charged to {memory}, outside {owner}: pages of " +
			"the guest that it touches first are charged there too",
	},
	{
		Code: "mischarged", Components: []Component{Workload}, Memory: []Place{PlaceService, PlaceRoot},
		Says: "a process of the application in sandbox {sandbox} ({size}) is charged to {memory}, outside " +
			"{owner}",
	},
	{
		Code: "overhead-outside-pod", Components: []Component{VMM}, Memory: []Place{PlaceOverhead},
		Says: "the {component} of sandbox {sandbox} ({size}) is charged to {memory}, outside {owner}, so no " +
			"limit set there applies to it and no statistics kept there count it",
	},
	{
		Code: "overhead-outside-pod", Components: []Component{Virtiofsd, Shim}, Memory: []Place{PlaceOverhead},
		Says: "the {component} of sandbox {sandbox} ({size}) is charged to {memory}, outside {owner}, so no " +
			"limit set there applies to it",
	},
	{
		Code: "pages-stayed-behind", Hierarchy: "v2", Components: []Component{VMM},
		Memory: []Place{PlaceSandbox, PlaceContainer, PlacePod, PlaceOwn}, Left: PlaceOverhead,
		Says: "the whole VMM of sandbox {sandbox} was moved into {memory}, but {left_size} of pages that it " +
			"had touched before stay charged to {left_group}, beyond what the processes there account for: " +
			"on cgroup v2 a process moves with all its threads, and its pages stay charged where they were " +
			"touched",
	},
}
