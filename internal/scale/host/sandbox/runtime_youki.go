package sandbox

func init() {
	registerRuntime(&runtime{
		Name:  "youki",
		Plain: true,
		Processes: []processRule{
			{
				Program: expr("youki(?::.*)?"), Args: expr("(?:.* )?init(?: .*)?"), Component: Init, Inside: true,
				Unsettled: true,
			},
		},
		States: []stateFiles{{Dirs: []string{"/run/youki"}, File: "{id}/state.json", Parse: parseRunc}},
	})
}
