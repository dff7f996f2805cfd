package sandbox

// Firecracker, started by its jailer, by firecracker-containerd or directly.
func init() {
	registerRuntime(&runtime{
		Name: "firecracker",
		VM:   true, GuestMemory: []Component{VMM},
		// docs/jailer.md of Firecracker: <parent, by default the name of the executable>/<id of the VM>
		Paths: []pathRule{
			{Match: expr("(?P<id>{id})"), Under: expr("firecracker"), Place: PlaceSandbox, Driver: "cgroupfs"},
		},
		Processes: []processRule{
			{Program: expr("containerd-shim-aws-firecracker"), Component: Shim, ID: []idSource{{Flag: "-id"}}},
		},
		Otherwise: []processRule{
			{
				Program: expr("firecracker"), Component: VMM, Required: true, Threads: true,
				ID: []idSource{
					{Flag: "--id"},
					{Match: expr("(?:.*[=:,])?/run/firecracker-containerd/[^/]+/(?P<id>{id})/.*")},
					{Match: expr(`(?:.*[=:,])?/(?P<id>{id})/firecracker\.sock`)},
				},
			},
		},
		Threads: []threadRule{
			{Comm: expr("fc_vcpu ?[0-9]+"), Component: VCPU},
			{Comm: expr("fc_api"), Component: IO},
		},
		Rows: []row{
			{
				Name: "firecracker-jailer", Title: "Firecracker under its jailer: firecracker/<id>",
				Memory: charged{VMM: {PlaceSandbox}},
			},
			{
				Name: "firecracker-service", Title: "Firecracker in the group of whoever started it",
				Memory: charged{VMM: {PlaceService, PlaceRoot, PlaceOther}},
			},
		},
	})
}
