package sandbox

func init() {
	registerRuntime(&runtime{
		Name:   "crun",
		Plain:  true,
		Launch: &Launch{Program: "crun", Install: "apt-get install crun"},
		Processes: []processRule{
			{
				Program: expr("crun"), Args: expr("(?:.* )?init(?: .*)?"), Component: Init, Inside: true,
				Unsettled: true,
			},
		},
		States: []stateFiles{{
			Dirs: []string{"/run/crun", "/run/tare/*/*/state"}, File: "{id}/status", Anywhere: true, Parse: parseRunc,
		}},
	})
}
