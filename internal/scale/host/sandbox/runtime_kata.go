package sandbox

// Kata Containers, both its Go runtime (flavour go) and runtime-rs (flavour rs), with any of its VMMs.
func init() {
	registerRuntime(&runtime{
		Name: "kata",
		VM:   true, GuestMemory: []Component{VMM, Virtiofsd},
		Paths: []pathRule{
			{
				Match: expr(`runtime-rs-(?P<id>{id})\.scope`), Under: expr(`kata-overhead\.slice`), Place: PlaceOverhead,
				Flavour: "rs", Driver: "systemd",
			},
			{Match: expr("(?P<id>{id})"), Under: expr("kata_overhead"), Place: PlaceOverhead, Driver: "cgroupfs"},
			{
				Match: expr("(?P<id>{id})"), Under: expr("kata_sandboxed_pod"), Place: PlaceSandbox, Flavour: "rs",
				Driver: "cgroupfs",
			},
			{
				Match: expr("kata_(?P<id>{id})"), Not: expr("kata_(?:overhead|sandboxed_pod)"), Place: PlaceSandbox,
				Flavour: "go", Driver: "cgroupfs",
			},
		},
		Processes: []processRule{
			{Program: expr("containerd-shim-kata-v2"), Component: Shim, Threads: true, ID: []idSource{{Flag: "-id"}}},
			{
				Program: expr(qemu + "|" + cloudHypervisor), Component: VMM, Required: true, Threads: true,
				ID: []idSource{{Match: expr("(?:.*[=:,])?/run/vc/vm/(?P<id>{id})/.*")}},
			},
			{
				Program: expr("stratovirt"), Component: VMM, Required: true, Threads: true,
				ID: []idSource{
					{Match: expr("(?:.*[=:,])?/run/vc/vm/(?P<id>{id})/.*")},
					{Flag: "-name", Match: expr("sandbox-(?P<id>{id})(?:,.*)?")},
				},
			},
			{
				Program: expr("firecracker"), Component: VMM, Required: true, Threads: true,
				ID: []idSource{{Match: expr("(?:.*[=:,])?/run/(?:vc|kata)/(?:vm/)?(?:firecracker/)?(?P<id>{id})/.*")}},
			},
			{
				Program: expr(virtiofsd), Component: Virtiofsd, Required: true,
				ID: []idSource{
					{Match: expr("(?:.*[=:,])?/run/vc/vm/(?P<id>{id})/.*")},
					{Match: expr("(?:.*[=:,])?/run/kata-containers/shared/sandboxes/(?P<id>{id})(?:/.*)?")},
					{Match: expr("(?:.*[=:,])?/run/kata/(?P<id>{id})(?:/.*)?")},
				},
			},
			{Program: expr("kata-monitor"), Component: Monitor, Shared: true},
		},
		Threads: []threadRule{
			// Dragonball has the VMM inside the shim (vcpu_impl.rs).
			{Comm: expr("db_vcpu[0-9]+"), Component: VCPU, Process: VMM},
			{Comm: expr("db_(?:blk|net|fs|vsock).*"), Component: IO},
		},
		States: []stateFiles{
			{Dirs: []string{"/run/vc/sbs"}, File: "{id}", Flavour: "go"},
			{Dirs: []string{"/run/kata"}, File: "{id}", Flavour: "rs"},
		},
		// The first row that matches counts.
		Rows: []row{
			{
				Name: "kata-dragonball", Title: "Kata runtime-rs with Dragonball: the VMM lives inside the shim",
				Program: "containerd-shim-kata-v2", Has: []Component{VCPU}, Absent: []Component{Shim},
			},
			{
				Name:      "kata-go-v1-systemd-false",
				Title:     "Kata (Go), cgroup v1, systemd driver, sandbox_cgroup_only=false: a literal directory",
				Hierarchy: "v1",
				CPU:       charged{VCPU: {PlaceLiteral}},
				Memory:    charged{VMM: {PlaceOverhead, PlaceService}},
			},
			{
				Name:      "kata-go-v2-systemd-false",
				Title:     "Kata (Go), cgroup v2, systemd driver, sandbox_cgroup_only=false: a literal directory",
				Hierarchy: "v2", Memory: charged{VMM: {PlaceLiteral}},
			},
			{
				Name: "kata-v1-cgroupfs-false",
				Title: "Kata, cgroup v1, cgroupfs driver, sandbox_cgroup_only=false: " +
					"only the vCPU threads are in the sandbox",
				Hierarchy: "v1",
				CPU:       charged{VCPU: {PlaceSandbox, PlaceContainer, PlacePod}},
				Memory:    charged{VMM: {PlaceOverhead}},
			},
			{
				Name: "kata-v2-cgroupfs-false",
				Title: "Kata, cgroup v2, cgroupfs driver, sandbox_cgroup_only=false: " +
					"the VMM is in the sandbox, the rest outside",
				OverheadDriver: "cgroupfs", Hierarchy: "v2",
				Memory: charged{VMM: {PlaceSandbox, PlaceContainer, PlacePod}, Shim: {PlaceOverhead}},
			},
			{
				Name: "kata-rs-systemd-false",
				Title: "Kata runtime-rs, systemd driver, sandbox_cgroup_only=false: " +
					"the VMM is in the sandbox, the rest outside",
				OverheadDriver: "systemd",
				Memory:         charged{VMM: {PlaceSandbox, PlaceContainer, PlacePod}, Shim: {PlaceOverhead}},
			},
			{
				Name: "kata-rs-systemd-late-move",
				Title: "Kata runtime-rs before 2026-07, systemd driver: " +
					"processes started before the move stayed in the service",
				Memory: charged{VMM: {PlaceService}, Shim: {PlaceContainer, PlaceSandbox, PlacePod}},
			},
			{
				Name:  "kata-go-cgroupfs-only",
				Title: "Kata (Go), cgroupfs driver, sandbox_cgroup_only=true: all in kata_<id>", Flavour: "go",
				Memory: charged{VMM: {PlaceSandbox}, Shim: {PlaceSandbox}},
			},
			{
				Name: "kata-rs-no-spec", Title: "Kata runtime-rs without a cgroupsPath: all in kata_sandboxed_pod/<id>",
				Flavour: "rs",
				Memory:  charged{VMM: {PlaceSandbox}, Shim: {PlaceSandbox}},
			},
			{
				Name:   "kata-systemd-only",
				Title:  "Kata, systemd driver, sandbox_cgroup_only=true: all in the scope of the sandbox",
				Driver: "systemd",
				Memory: charged{VMM: {PlaceContainer}, Shim: {PlaceContainer}},
			},
			{
				Name:   "kata-rs-cgroupfs-only",
				Title:  "Kata runtime-rs, cgroupfs driver, sandbox_cgroup_only=true: all in <pod>/<id>",
				Driver: "cgroupfs",
				Memory: charged{VMM: {PlaceContainer}, Shim: {PlaceContainer}},
			},
		},
		Findings: []findingRule{
			{
				Code: "vmm-inside-shim", Row: "kata-dragonball", Components: []Component{VMM},
				Says: "the VMM of sandbox {sandbox} runs inside its shim ({size}): the two cannot be told apart",
			},
		},
	})
}
