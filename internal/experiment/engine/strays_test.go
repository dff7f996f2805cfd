package engine

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
)

// TestStrays: if a subject moves itself into another control group, no counter of the trial includes its cost. Its
// trial says so, and no other does.
func TestStrays(t *testing.T) {
	g := newGround(t)
	var mounts []string
	for _, h := range g.machine.Cgroups.Hierarchies {
		mounts = append(mounts, h.Mount)
	}
	leave := "for d in " + strings.Join(mounts, " ") + "; do echo $$ >$d/cgroup.procs; done; exec sleep 100"
	text := strings.Replace(tolerant(shortSpec), "kernelmesh: {subject: kernelmesh, steps: 10}",
		`leaves: {subject: command, command: "sh -c '`+leave+`'", ready-after: 300ms, stop-time: 100ms}
  stays: {subject: command, command: "sleep 100", ready-after: 300ms}`, 1)
	_, trials, err := g.run(t.Context(), mustParse(t, text), quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		at := slices.IndexFunc(tr.Validity.Reasons, func(r record.Reason) bool {
			return r.Gate == measured.GateContained.Name
		})
		switch {
		case tr.Validity.Failed != "":
			t.Errorf("%s: %s", tr.Arm, tr.Validity.Failed)
		case (at >= 0) != (tr.Arm == "leaves"):
			t.Errorf("%s: its reasons are %+v", tr.Arm, tr.Validity.Reasons)
		case at >= 0 && !strings.Contains(tr.Validity.Reasons[at].Message, "(sleep) of the trial is in the control group /"):
			t.Errorf("%s: it says %q", tr.Arm, tr.Validity.Reasons[at].Message)
		}
	}
}

// TestObservedHasEnded: a trial fails with a clear error if the process to be observed has ended; the others are run.
func TestObservedHasEnded(t *testing.T) {
	g := newGround(t)
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(tolerant(shortSpec), "kernelmesh: {subject: kernelmesh, steps: 10}",
		fmt.Sprintf("gone: {subject: command, observe: pid:%d}", gone.Process.Pid), 1)
	_, trials, err := g.run(t.Context(), mustParse(t, text), quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		if failed := tr.Validity.Failed; strings.Contains(failed, "there is no such process") != (tr.Arm == "gone") {
			t.Errorf("%s: it says %q", tr.Arm, failed)
		}
	}
}
