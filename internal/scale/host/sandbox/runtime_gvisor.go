package sandbox

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"

	"tare/internal/lib/param"
)

func init() {
	registerRuntime(&runtime{
		Name: "gvisor",
		Launch: &Launch{
			Program: "runsc", Title: "gVisor", Install: "make runsc", Main: Sentry,
			Settings: []param.Setting{{
				Name: "platform", Type: param.TypeWord, Default: "systrap", Words: []string{"systrap", "ptrace", "kvm"},
				Doc: "of `runsc`: how it intercepts system calls",
			}},
			configure: func(v param.Values, _ string) Config {
				// Without the overlay of gVisor, the root file system is that of the bundle, as with other runtimes.
				args := []string{"--platform=" + v["platform"], "--overlay2=none"}
				if v["network"] == "host" {
					args = append(args, "--network=host")
				}
				return Config{Args: args, Trait: "gVisor, platform " + v["platform"]}
			},
		},
		// The sentry keeps the memory of applications in a memfd (pkg/sentry/pgalloc).
		GuestMemory: []Component{Sentry},
		Processes: []processRule{
			{Program: expr("containerd-shim-runsc-v1"), Component: Shim, ID: []idSource{{Flag: "-id"}}},
			// runsc starts itself again as /proc/self/exe and sets argv[0] (runsc/sandbox, runsc/container).
			{
				Program: expr("runsc-sandbox"), Component: Sentry, Children: Workload, StateFlag: "--root",
				ID: []idSource{{Last: true, Match: expr("(?P<id>{id})")}},
			},
			{
				Program: expr("runsc-gofer"), Component: Gofer, StateFlag: "--root",
				ID: []idSource{{
					Flag: "--bundle", Match: expr(`.*/io\.containerd\.runtime\.v2\.task/[^/]+/(?P<id>{id})/?`),
					Container: true,
				}},
			},
			{
				Program: expr("runsc(?:-metric.*)?"), Args: expr(".* metric-server(?: .*)?"), Component: Monitor,
				Shared: true,
			},
		},
		States: []stateFiles{{
			Dirs: []string{"/run/runsc", "/run/containerd/runsc/*", "/var/run/docker/runtime-runsc/moby"},
			File: "{id}_sandbox:{sandbox}.state", Anywhere: true, Parse: parseRunsc,
		}},
		Rows: []row{
			{
				Name: "gvisor-cgroupfs-v1", Title: "gVisor, cgroupfs driver, cgroup v1: the sentry is in the pod itself",
				Memory: charged{Sentry: {PlacePod}},
			},
			{
				Name:  "gvisor-cgroupfs-v2",
				Title: "gVisor, cgroupfs driver, cgroup v2: all in the leaf of the pause container", Driver: "cgroupfs",
				Pod: new(true), Memory: charged{Sentry: {PlaceContainer}},
			},
			{
				Name: "gvisor-systemd", Title: "gVisor, systemd driver: all in the scope of the pause container",
				Driver: "systemd", Pod: new(true),
				Memory: charged{Sentry: {PlaceContainer}},
			},
			{
				Name:  "gvisor-container",
				Title: "gVisor outside Kubernetes: the group of the container is that of the sandbox", Pod: new(false),
				Has: []Component{Sentry},
			},
		},
		Findings: []findingRule{
			{
				Code: "mischarged", Components: []Component{Sentry, Gofer},
				Memory: []Place{PlaceService, PlaceRoot, PlaceOther},
				Says:   "the {component} of sandbox {sandbox} ({size}) is charged to {memory}, outside {owner}",
			},
			{
				Code: "empty-container-groups", Components: []Component{Sentry}, Memory: []Place{PlacePod}, EmptyGroups: true,
				Says: "the {empty} container groups below the pod of sandbox {sandbox} hold no process: gVisor makes " +
					"them for cAdvisor, and everything is charged to {memory}",
			},
			{
				Code: "one-group-for-all", Components: []Component{Sentry}, Pod: new(true), Memory: []Place{PlaceContainer},
				Says: "all containers of sandbox {sandbox} are charged to {memory}, that of its pause container: " +
					"statistics by container show nothing for the others",
			},
		},
	})
}

// parseRunsc parses a state file of runsc. A PID is a 32-bit number in older versions, and an object in newer ones.
func parseRunsc(s *state, file string, text []byte) error {
	if _, name, ok := strings.Cut(filepath.Base(file), "_sandbox:"); ok {
		if name = strings.TrimSuffix(name, ".state"); validID(name) {
			s.Sandbox = name
		}
	}
	var f struct {
		Gofer   json.RawMessage `json:"goferPid"`
		Sandbox struct {
			PID json.RawMessage `json:"pid"`
		} `json:"sandbox"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if pid := pidOf(f.Sandbox.PID); pid > 0 {
		s.pids[pid] = role{component: Sentry}
	}
	if pid := pidOf(f.Gofer); pid > 0 {
		s.pids[pid] = role{component: Gofer}
	}
	return nil
}

// pidOf parses a PID that is a number, or an object with one number.
func pidOf(raw json.RawMessage) int {
	var n float64
	if json.Unmarshal(raw, &n) != nil {
		var fields map[string]float64
		if json.Unmarshal(raw, &fields) != nil || len(fields) != 1 {
			return 0
		}
		for _, n = range fields {
		}
	}
	if n < 1 || n > 1<<22 || n != math.Trunc(n) {
		return 0
	}
	return int(n)
}
