package command

import (
	"context"
	"encoding/json"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/process"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/proc"
)

// observed is an application that runs before, during and after the trial.
type observed struct {
	trial    kind.Trial
	name     string
	target   process.Target
	address  string
	existing *process.Existing
}

func newObserved(t kind.Trial, name, target, address string) (*observed, error) {
	parsed, err := process.ParseTarget(target)
	return &observed{trial: t, name: name, target: parsed, address: address}, err
}

// Serve finds the observed program, and attributes the use of its control group to the application.
func (o *observed) Serve(context.Context) (app kind.App, err error) {
	finder := process.Finder{Layout: o.trial.Cgroups(), Proc: proc.FS{}}
	if o.existing, err = finder.Find(o.target); err != nil {
		return app, err
	}
	if o.existing.Path == "" {
		return app, fault.New(fault.Usage, o.target.String(), "start it in a control group of its own, such as by "+
			"systemd-run --scope, or name the whole group as cgroup:PATH",
			"shares its control group with other processes, and its use cannot be separated from theirs")
	}
	if err := o.trial.Observe(kind.Application, o.name, o.existing.Path); err != nil {
		return app, err
	}
	app.Address = o.address
	app.Ready, err = json.Marshal(struct {
		Address string `json:"address"`
	}{o.address})
	return app, err
}

// Begun begins to check that the program stays in its control group.
func (o *observed) Begun(context.Context, role.Schedule) error { return o.existing.Watch() }

// Close ends the check.
func (o *observed) Close() error { return o.existing.Close() }

// After returns an error if the observed program ended or was restarted during the trial. It warns about processes that
// left the program's control group, or that may have done so unseen.
func (o *observed) After(context.Context) error {
	if err := o.existing.Refresh(); err != nil {
		return err
	}
	stray, err := o.existing.Strays()
	if stray != "" {
		o.trial.Warn(measured.WarnStrays, "%s", stray)
	}
	if why := o.existing.Unseen(); why != "" {
		o.trial.Warn(measured.WarnUnseen, "%s", why)
	}
	return err
}
