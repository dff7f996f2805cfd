package sandbox

import (
	"encoding/json"
	"strconv"
	"time"

	"tare/internal/lib/param"
)

// Tare's reference sandbox (internal/sandboxes/microvm): the shim is a hidden command of the tare binary.
func init() {
	registerRuntime(&runtime{
		Name: "microvm",
		VM:   true, GuestMemory: []Component{VMM, Virtiofsd},
		Launch: &Launch{
			Program: "microvm", Title: "Tare's own", Own: true, Main: VMM,
			configure: func(v param.Values, overhead string) Config {
				a := map[string]string{"io.tare.microvm.sandbox_cgroup_only": strconv.FormatBool(overhead == "")}
				if overhead != "" {
					a["io.tare.microvm.overhead_parent"] = overhead
				}
				if within := v.Duration("ready-timeout"); within > time.Minute { // its default
					a["io.tare.microvm.boot_timeout"] = within.String()
				}
				return Config{Annotations: a}
			},
		},
		Processes: []processRule{
			{
				Program: expr("tare(?:-[a-z0-9-]+)?"), Args: expr("[^ ]+ microvm _?shim(?: .*)?"), Component: Shim,
				Required: true, ID: []idSource{{Flag: "-id"}},
			},
			{
				Program: expr(qemu), Component: VMM, Required: true, Threads: true,
				ID: []idSource{{Match: expr("(?:.*[=:,])?/run/tare-microvm/(?P<id>{id})/.*")}},
			},
			{
				Program: expr(virtiofsd), Component: Virtiofsd, Required: true,
				ID: []idSource{{Match: expr("(?:.*[=:,])?/run/tare-microvm/(?P<id>{id})(?:/.*)?")}},
			},
		},
		States: []stateFiles{{Dirs: []string{"/run/tare-microvm"}, File: "{id}/state.json", Parse: parseMicrovm}},
		Rows: []row{
			{
				Name:      "microvm-v1-split",
				Title:     "microvm, cgroup v1, sandbox_cgroup_only=false: only the vCPU threads were moved",
				Hierarchy: "v1",
				CPU:       charged{VCPU: {PlaceSandbox, PlaceContainer, PlaceOwn}},
				Memory:    charged{VMM: {PlaceOverhead}},
			},
			{
				Name:      "microvm-v2-split",
				Title:     "microvm, cgroup v2, sandbox_cgroup_only=false: the VMM was moved, the rest was not",
				Hierarchy: "v2",
				Memory:    charged{VMM: {PlaceSandbox, PlaceContainer, PlaceOwn}, Shim: {PlaceOverhead}},
			},
			{Name: "microvm", Title: "microvm: all in one group", Has: []Component{VMM}},
		},
	})
}

// parseMicrovm parses state.json of Tare's microvm (package microvm).
func parseMicrovm(s *state, _ string, text []byte) error {
	type process struct {
		PID   int    `json:"pid"`
		Start uint64 `json:"start"`
	}
	var f struct {
		Annotations   map[string]string `json:"annotations"`
		Shim          process           `json:"shim"`
		VMM           process           `json:"vmm"`
		Virtiofsd     process           `json:"virtiofsd"`
		SandboxGroup  string            `json:"sandbox_group"`
		OverheadGroup string            `json:"overhead_group"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	s.annotate(f.Annotations)
	for c, p := range map[Component]process{Shim: f.Shim, VMM: f.VMM, Virtiofsd: f.Virtiofsd} {
		if p.PID > 0 {
			s.pids[p.PID] = role{c, p.Start}
		}
	}
	for _, p := range []string{f.SandboxGroup, f.OverheadGroup} {
		if p != "" && len(p) <= maxPath {
			s.groups = append(s.groups, p)
		}
	}
	return nil
}
