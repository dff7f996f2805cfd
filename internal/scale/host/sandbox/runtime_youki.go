package sandbox

func init() {
	registerRuntime(&runtime{
		Name:   "youki",
		Plain:  true,
		Launch: &Launch{Program: "youki", Install: "cargo install youki"},
		Processes: []processRule{
			{
				Program: expr("youki(?::.*)?"), Args: expr("(?:.* )?init(?: .*)?"), Component: Init, Inside: true,
				Unsettled: true,
			},
		},
		States: []stateFiles{{Dirs: []string{"/run/youki"}, File: "{id}/state.json", Parse: parseRunc}},
	})
}
