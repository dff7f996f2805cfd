package sandbox

func init() {
	registerEngine(&engine{
		Name: "containerd",
		Paths: []pathRule{
			{Match: expr(`cri-containerd-(?P<id>{id})\.scope`), Place: PlaceContainer, Driver: "systemd"},
		},
		States: []stateFiles{{
			Dirs: []string{
				"/run/containerd/io.containerd.runtime.v2.task/*",
				"/run/k3s/containerd/io.containerd.runtime.v2.task/*", // also of RKE2
				"/run/k0s/containerd/io.containerd.runtime.v2.task/*",
				"/var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/*",
			},
			File: "{id}/config.json", Parse: parseOCI,
		}},
		Rows: []row{
			{
				Name: "containerd-systemd", Title: "containerd, systemd driver: cri-containerd-<id>.scope",
				Driver: "systemd", Pod: new(true),
				Memory: charged{Workload: {PlaceContainer}},
			},
		},
	})
}
