package sandbox

func init() {
	registerEngine(&engine{
		Name: "docker",
		Paths: []pathRule{
			{Match: expr(`docker-(?P<id>{hex})\.scope`), Place: PlaceContainer, Driver: "systemd"},
			{Match: expr("(?P<id>{hex})"), Under: expr("docker"), Place: PlaceContainer, Driver: "cgroupfs"},
		},
		Rows: []row{
			{
				Name: "docker-systemd", Title: "Docker, systemd driver: docker-<id>.scope", Driver: "systemd",
				Pod: new(false), Components: map[Component]places{Workload: {Memory: []Place{PlaceContainer}}},
			},
			{
				Name: "docker-cgroupfs", Title: "Docker, cgroupfs driver: /docker/<id>", Driver: "cgroupfs",
				Pod: new(false), Components: map[Component]places{Workload: {Memory: []Place{PlaceContainer}}},
			},
		},
	})
}
