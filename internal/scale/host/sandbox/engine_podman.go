package sandbox

func init() {
	registerEngine(&engine{
		Name: "podman",
		Paths: []pathRule{
			{Match: expr(`libpod-conmon-(?P<id>{hex})\.scope`), Place: PlaceHelper, Driver: "systemd"},
			{Match: expr("libpod-conmon-(?P<id>{hex})"), Place: PlaceHelper, Driver: "cgroupfs"},
			{Match: expr(`libpod-(?P<id>{hex})\.scope`), Place: PlaceContainer, Driver: "systemd"},
			{Match: expr("libpod-(?P<id>{hex})"), Place: PlaceContainer, Driver: "cgroupfs"},
			// Of --cgroups=split, as Quadlet has it.
			{Match: expr("libpod-payload-(?P<id>{hex})"), Place: PlaceContainer, Driver: "cgroupfs"},
		},
		Rows: []row{
			{
				Name: "podman-systemd", Title: "podman, systemd driver: libpod-<id>.scope", Driver: "systemd",
				Components: map[Component]places{Workload: {Memory: []Place{PlaceContainer}}},
			},
			{
				Name: "podman-cgroupfs", Title: "podman, cgroupfs driver: libpod_parent/libpod-<id>", Driver: "cgroupfs",
				Components: map[Component]places{Workload: {Memory: []Place{PlaceContainer}}},
			},
		},
	})
}
