package sandbox

import (
	"encoding/json"
)

func init() {
	registerRuntime(&runtime{
		Name:   "runc",
		Plain:  true,
		Launch: &Launch{Program: "runc", Install: "apt-get install runc"},
		Processes: []processRule{
			{Program: expr("containerd-shim-runc-v[12]"), Component: Shim, ID: []idSource{{Flag: "-id"}}},
			{
				Program: expr(`runc|runc:\[.*\]`), Args: expr("(?:.* )?init(?: .*)?"), Component: Init, Inside: true,
				Unsettled: true,
			},
		},
		States: []stateFiles{{
			Dirs: []string{
				"/run/runc", "/run/containerd/runc/*", "/run/docker/runtime-runc/moby", "/run/tare/*/*/state",
			},
			File: "{id}/state.json", Anywhere: true, Parse: parseRunc,
		}},
	})
}

// parseRunc parses state.json of runc and youki, or status of crun. These have the same information in different
// fields (libcontainer's BaseState; crun's libcrun_container_status_s).
func parseRunc(s *state, _ string, text []byte) error {
	var f struct {
		PID       int               `json:"pid"`
		Start     uint64            `json:"process-start-time"`
		InitPID   int               `json:"init_process_pid"`
		InitStart uint64            `json:"init_process_start"`
		Paths     map[string]string `json:"cgroup_paths"`
		Path      string            `json:"cgroup-path"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.PID > 0 {
		s.pids[f.PID] = role{Workload, f.Start}
	}
	if f.InitPID > 0 {
		s.pids[f.InitPID] = role{Workload, f.InitStart}
	}
	for _, p := range f.Paths {
		if len(p) <= maxPath {
			s.groups = append(s.groups, p)
		}
	}
	if f.Path != "" && len(f.Path) <= maxPath {
		s.groups = append(s.groups, f.Path)
	}
	return nil
}
