package sandbox

func init() {
	registerEngine(&engine{
		Name: "cri-o",
		Paths: []pathRule{
			{Match: expr(`crio-conmon-(?P<id>{id})\.scope`), Place: PlaceHelper, Driver: "systemd"},
			{Match: expr(`crio-(?P<id>{id})\.scope`), Place: PlaceContainer, Driver: "systemd"},
			{Match: expr("crio-conmon-(?P<id>{id})"), Place: PlaceHelper, Driver: "cgroupfs"},
			{Match: expr("crio-(?P<id>{id})"), Place: PlaceContainer, Driver: "cgroupfs"},
		},
		Rows: []row{
			{
				Name: "crio-systemd", Title: "CRI-O, systemd driver: crio-<id>.scope", Driver: "systemd",
				Memory: charged{Workload: {PlaceContainer}},
			},
			{
				Name: "crio-cgroupfs", Title: "CRI-O, cgroupfs driver: <pod>/crio-<id>", Driver: "cgroupfs",
				Memory: charged{Workload: {PlaceContainer}},
			},
		},
	})
}
