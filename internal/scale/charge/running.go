package charge

import (
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// Running lists the processes of this machine. Those that end in the meantime are left out.
func Running(l *cgroup.Layout) ([]Process, error) {
	var fs proc.FS
	pids, err := fs.PIDs()
	if err != nil {
		return nil, err
	}
	groups := l.NewResolver()
	all := make([]Process, 0, len(pids))
	for _, pid := range pids {
		comm, err := fs.Comm(pid)
		if err != nil {
			continue
		}
		path, err := groups.Path(pid)
		if err != nil || path == "" {
			continue
		}
		all = append(all, Process{PID: pid, Comm: comm, Cgroup: path})
	}
	return all, nil
}
