package subject_test

import (
	"slices"
	"strings"
	"testing"

	"tare/internal/fault"
	"tare/internal/subject"
	_ "tare/internal/subject/mesh/kernelmesh"
)

func TestCommand(t *testing.T) {
	s, err := subject.Lookup("kernelmesh")
	if err != nil {
		t.Fatal(err)
	}
	place := subject.Place{Self: "/bin/tare", CgroupDir: "/sys/fs/cgroup/x", ServicesFile: "s.yaml", Options: map[string]string{"steps": "500", "peer": "endpoint"}}
	c, err := s.Command(place)
	if err != nil {
		t.Fatal(err)
	}
	want := "/bin/tare subject kernelmesh --cgroup=/sys/fs/cgroup/x --services=s.yaml --peer=endpoint --steps=500 --sockops-steps=0"
	if got := strings.Join(c.Argv, " "); got != want || !c.Role {
		t.Errorf("got  %s (role %v)\nwant %s", got, c.Role, want)
	}
	place.XDS = "127.0.0.1:1"
	if c, err = s.Command(place); err != nil || !slices.Contains(c.Argv, "--xds=127.0.0.1:1") || slices.Contains(c.Argv, "--services=s.yaml") {
		t.Errorf("%v, %v", c.Argv, err)
	}
	for _, test := range []struct{ option, value, what, mend string }{
		{"stpes", "1", `no option "stpes"`, "did you mean steps?"},
		{"colour", "red", `no option "colour"`, "there is store, "},
		{"steps", "many", `"steps" must be a whole number, not "many"`, "planted weight; 0 to 8388608"},
		{"steps", "-1", `"steps" must be at least 0, not -1`, "planted weight"},
	} {
		place.Options = map[string]string{test.option: test.value}
		_, err := s.Command(place)
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), test.what) || !strings.Contains(fault.MendOf(err), test.mend) {
			t.Errorf("%s=%s: got %v (%s)", test.option, test.value, err, fault.MendOf(err))
		}
	}
}

func TestLookup(t *testing.T) {
	_, err := subject.Lookup("kernelmash")
	if fault.CodeOf(err) != fault.Usage || fault.MendOf(err) != "did you mean kernelmesh?" {
		t.Errorf("got %v (%s)", err, fault.MendOf(err))
	}
	all := subject.All()
	if !slices.IsSortedFunc(all, func(a, b subject.Subject) int { return strings.Compare(a.Name, b.Name) }) || len(all) == 0 {
		t.Errorf("all subjects: %v", all)
	}
}
