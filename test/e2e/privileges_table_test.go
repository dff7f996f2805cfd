package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/experiment/child"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	"tare/test/busy"
	"tare/test/long"
	"tare/test/owned"
)

// rightsRow is a row of the table "Which command needs what" of docs/security.md.
type rightsRow struct {
	command     string // the first cell
	root        bool   // user ID 0 is asked for
	needs, more []cap.Value
	writes      string
}

var (
	capabilityName = regexp.MustCompile(`CAP_[A-Z_]+`)
	rightsTable    = regexp.MustCompile(`(?s)\n## Which command needs what\n(.*?)\n## `)
)

// readRightsTable reads the table.
func readRightsTable(t *testing.T) (rows []rightsRow) {
	t.Helper()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	section := rightsTable.FindSubmatch(page)
	if section == nil {
		t.Fatal("docs/security.md has no section on what commands need")
	}
	for line := range strings.Lines(string(section[1])) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 4 {
			t.Fatalf("%d cells are in the row %s", len(cells), line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		r := rightsRow{command: cells[0], root: strings.HasPrefix(cells[1], "user ID 0"), needs: named(t, cells[1]),
			more: named(t, cells[2]), writes: cells[3]}
		if strings.HasPrefix(cells[1], "nothing") != (len(r.needs) == 0) || (cells[2] == "-") != (len(r.more) == 0) {
			t.Errorf("the row of %s contradicts itself: it needs %q, and more is %q", r.command, cells[1], cells[2])
		}
		rows = append(rows, r)
	}
	return rows
}

// named returns the capabilities that a text names, each once.
func named(t *testing.T, text string) (all []cap.Value) {
	t.Helper()
	for _, name := range capabilityName.FindAllString(text, -1) {
		v, err := cap.FromName(strings.ToLower(name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// nameOf returns the name of a capability as messages and pages write it, such as CAP_BPF.
func nameOf(c cap.Value) string { return strings.ToUpper(c.String()) }

// without returns all capabilities except one.
func without(all []cap.Value, one cap.Value) []cap.Value {
	return slices.DeleteFunc(slices.Clone(all), func(c cap.Value) bool { return c == one })
}

// actor is a user, 65534 if not root, with some capabilities. It works in a separate directory, and has another for
// temporary files.
type actor struct {
	user           uint32
	dir, temporary string
	has            []cap.Value
}

func newActor(t *testing.T, has ...cap.Value) actor {
	t.Helper()
	return actor{nobody, ownDir(t), ownDir(t), has}
}

// newRoot returns an actor with user ID 0.
func newRoot(t *testing.T, has ...cap.Value) actor {
	t.Helper()
	return actor{0, dirOf(t, 0), dirOf(t, 0), slices.Concat([]cap.Value{}, has)} // nil would mean all of them
}

// nobody is the user ID of actors.
const nobody = 65534

// ownDir makes a directory that belongs to the actors' user.
func ownDir(t *testing.T) string { return dirOf(t, nobody) }

func dirOf(t *testing.T, user int) string {
	t.Helper()
	dir, err := owned.TempDir("rights")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (a actor) start(t *testing.T, args ...string) *process {
	t.Helper()
	return command{args: args, dir: a.dir, env: []string{"TMPDIR=" + a.temporary}, user: a.user, has: a.has}.start(t)
}

func (a actor) run(t *testing.T, args ...string) output {
	t.Helper()
	return a.start(t, args...).wait(t)
}

// done runs tare, which must exit with 0.
func (a actor) done(t *testing.T, args ...string) output {
	t.Helper()
	o := a.run(t, args...)
	if o.code != 0 {
		t.Fatalf("tare %s, with %v: %s", strings.Join(args, " "), a.has, o)
	}
	return o
}

// refused runs a command that must fail because the actor lacks a capability, with a message that names the capability.
func (a actor) refused(t *testing.T, lacks cap.Value, args ...string) {
	t.Helper()
	if o := a.run(t, args...); !refuses(o, lacks) {
		t.Errorf("tare %s, with %v: want exit code 3 and a message that names %s: %s", strings.Join(args, " "), a.has,
			nameOf(lacks), o)
	}
}

func refuses(o output, lacks cap.Value) bool {
	return o.code == int(fault.Machine) && strings.Contains(o.stderr, nameOf(lacks))
}

// wrote checks that the actor's directory holds just the named files, and that no temporary files are left.
func (a actor) wrote(t *testing.T, names ...string) {
	t.Helper()
	for dir, want := range map[string][]string{a.dir: names, a.temporary: nil} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var there []string
		for _, e := range entries {
			there = append(there, e.Name())
		}
		if !slices.Equal(there, slices.Sorted(slices.Values(want))) {
			t.Errorf("in %s there are %q, want %q", dir, there, want)
		}
	}
}

// rightsTest tests one row.
type rightsTest struct {
	// refused returns command lines that fail if one of the needed capabilities is missing. It also sets up what these
	// commands work on, until the end of the test.
	refused func(*testing.T) [][]string
	// works does what the command is for, as an actor that has just the capabilities that it needs, and returns the names
	// of the files that were written.
	works func(*testing.T, actor) (files []string)
	// more checks, for each further capability, that an actor with all capabilities of the row can do what it allows, and
	// that an actor without it cannot, and is informed of that.
	more map[cap.Value]func(t *testing.T, with, lacks actor)
	// alone is set if the tests of other rows would disturb this one, or the other way round.
	alone bool
	// root is set if the command needs user ID 0 besides capabilities, and must be refused without it.
	root bool
}

func (x rightsTest) actor(t *testing.T, has ...cap.Value) actor {
	t.Helper()
	if x.root {
		return newRoot(t, has...)
	}
	return newActor(t, has...)
}

func (x rightsTest) run(t *testing.T, row rightsRow) {
	var refused [][]string
	if x.refused != nil {
		refused = x.refused(t)
	}
	if len(row.needs) > 0 && len(refused) == 0 {
		t.Error("there is no command that is refused")
	}
	for _, c := range row.needs {
		for _, args := range refused {
			a := x.actor(t, without(row.needs, c)...)
			a.refused(t, c, args...)
			a.wrote(t)
		}
	}
	if x.root != row.root {
		t.Errorf("user ID 0 is asked for: %v, by the table %v", x.root, row.root)
	}
	if x.root {
		for _, args := range refused {
			a := newActor(t, row.needs...)
			if o := a.run(t, args...); o.code != int(fault.Machine) || !strings.Contains(o.stderr, "run as root") {
				t.Errorf("tare %s, as user %d: %s", strings.Join(args, " "), a.user, o)
			}
			a.wrote(t)
		}
	}
	a := x.actor(t, row.needs...)
	files := x.works(t, a)
	a.wrote(t, files...)
	if row.writes == "-" && len(files) > 0 {
		t.Errorf("it wrote %q, and the table says that it writes nothing", files)
	}
	all := slices.Concat(row.needs, row.more)
	for _, c := range row.more {
		if x.more[c] == nil {
			t.Errorf("what %s brings is not tested", nameOf(c))
			continue
		}
		t.Run(nameOf(c), func(t *testing.T) { x.more[c](t, newActor(t, all...), newActor(t, without(all, c)...)) })
	}
	for c := range x.more {
		if !slices.Contains(row.more, c) {
			t.Errorf("%s is tested, and the table does not have it", nameOf(c))
		}
	}
}

// TestWhichCommandNeedsWhat runs every row of the table in docs/security.md. With the capabilities that the row says
// are needed, the command works; without one of them, it says which it lacks. What further capabilities bring is there
// with them, and reported as missing without them. The commands run as a user who is not root and can get no other
// capability.
func TestWhichCommandNeedsWhat(t *testing.T) {
	needsRoot(t) // to be somebody else
	leavesNothing(t)
	tests := map[string]rightsTest{
		"`tare list`, `version`, `report`":               {works: listWorks},
		"`tare compare`, `power`, `plan`":                {works: compareWorks},
		"`tare node keys`":                               {works: keysWork},
		"`tare app http`":                                {works: appWorks, more: lowPorts},
		"`tare app burn`, `mesh`":                        {works: appsWork},
		"`tare load http`":                               {works: loadWorks},
		"`tare load exec`, `probe`, `syscalls`, `write`": {works: loadsWork},
		"`tare load connect`, `push`":                    {works: meshLoadsWork},
		"`tare subject exectrace`":                       exectraceRights(),
		"`tare subject kernelmesh`":                      kernelmeshRights(),
		"`tare subject store`":                           storeRights(),
		"`tare controlplane`":                            {works: controlplaneWorks},
		"`tare controlplane pod`":                        {works: podWorks},
		"`tare doctor`":                                  {works: doctorWorks, more: doctorFeatures()},
		"`tare weigh`, `top`":                            weighRights(),
		"`tare top --agent`":                             {works: topOfAgentWorks},
		"`tare-agent`":                                   agentRights(t),
		"`tare calibrate`":                               calibrateRights(),
		"`tare microvm features`":                        {works: microvmShows},
		"`tare microvm run`, `create`, `start`, `state`, `list`, `kill`, `delete`": microvmRights(),
		"`tare run quickstart`, `try`":                                             runRights(),
		"`tare run` with a load of execs":                                          execsRights(),
		"`tare run` with redirected connections":                                   redirectRights(),
		"`tare run` with sandboxes of `runc`":                                      sandboxRights(),
		"`tare node --join`":                                                       nodeRights(),
		"`tare clean` of one's own groups":                                         cleanRights(),
	}
	rows := readRightsTable(t)
	some := long.Some(9, rows)
	for _, row := range rows {
		x, ok := tests[row.command]
		if !ok {
			t.Errorf("the row of %s has no test", row.command)
			continue
		}
		delete(tests, row.command)
		if !slices.ContainsFunc(some, func(r rightsRow) bool { return r.command == row.command }) {
			continue
		}
		t.Run(strings.ReplaceAll(row.command, "`", ""), func(t *testing.T) {
			if !x.alone {
				t.Parallel()
			}
			x.run(t, row)
		})
	}
	for _, command := range slices.Sorted(maps.Keys(tests)) {
		t.Errorf("docs/security.md has no row of %s", command)
	}
}

// smallestRights tests who may run a built-in experiment, by its smallest form.
func smallestRights(name string, root bool) rightsTest {
	spec := ""
	args := func(t *testing.T) []string {
		t.Helper()
		if spec == "" {
			dir := ownDir(t)
			spec = filepath.Join(dir, "spec.yaml")
			err := os.WriteFile(spec, []byte(smallests[name].spec(t, name)), 0o644)
			if err == nil {
				err = os.Chmod(dir, 0o755) // root without CAP_DAC_OVERRIDE reads it too
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		all := []string{"run", spec, "--out", "run"}
		for _, set := range smallests[name].set {
			all = append(all, "--set", set)
		}
		return all
	}
	return rightsTest{
		root:    root,
		refused: func(t *testing.T) [][]string { return [][]string{args(t)} },
		works: func(t *testing.T, a actor) []string {
			recorded(t, a, a.run(t, args(t)...), "run")
			return []string{"run"}
		},
	}
}

func redirectRights() rightsTest { return smallestRights("mesh-redirect", false) }

func sandboxRights() rightsTest { return smallestRights("sandbox-idle", true) }

// TestActor: an actor has the capabilities that it is given, and can get no others.
func TestActor(t *testing.T) {
	needsRoot(t) // to be somebody else
	has := []cap.Value{cap.SYS_PTRACE, cap.BPF}
	want := fmt.Sprintf("%016x", 1<<cap.SYS_PTRACE|1<<cap.BPF)
	a := newActor(t, has...)
	p := a.start(t, "app", "http")
	p.waitFor(t, "serving ")
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.pid))
	if err != nil || len(tasks) == 0 {
		t.Fatal(err)
	}
	for _, task := range tasks {
		status, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		sets := regexp.MustCompile(`(?m)^Cap(?:Inh|Prm|Eff|Bnd|Amb):\t(\S+)$`).FindAllSubmatch(status, -1)
		if len(sets) != 5 || slices.ContainsFunc(sets, func(m [][]byte) bool { return string(m[1]) != want }) ||
			!strings.Contains(string(status), fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", nobody)) {
			t.Errorf("want %s in all sets, and user %d: %s", want, nobody, status)
		}
	}
	p.signal(t, syscall.SIGTERM)
	p.wait(t)
}

// readableRecord returns a smallRecord that an actor can read.
func readableRecord(t *testing.T, id string) string { return ownedRecord(t, id, smallRecord(t, id)) }

// ownedRecord copies a run for the user that commands run as.
func ownedRecord(t *testing.T, id, run string) string {
	t.Helper()
	dir := filepath.Join(ownDir(t), id)
	if err := os.CopyFS(dir, os.DirFS(run)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, nobody, nobody))
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func listWorks(t *testing.T, a actor) []string {
	if o := a.done(t, "list"); !strings.Contains(o.stdout, "quickstart\n") {
		t.Errorf("list: %s", o)
	}
	if o := a.done(t, "version"); !strings.Contains(o.stdout, "go1.") {
		t.Errorf("version: %s", o)
	}
	run := readableRecord(t, "one")
	if o := a.done(t, "report", run); !strings.Contains(o.stdout, "p50") {
		t.Errorf("report: %s", o)
	}
	a.done(t, "report", run, "--format", "html", "-o", "page.html")
	return []string{"page.html"}
}

func compareWorks(t *testing.T, a actor) []string {
	one, two := readableRecord(t, "one"), readableRecord(t, "two")
	if o := a.done(t, "compare", one, two, "--anyway", "--html", "page.html"); !strings.Contains(o.stdout, "p50") {
		t.Errorf("compare: %s", o)
	}
	if o := a.done(t, "power", one); !strings.Contains(o.stdout, "p50") {
		t.Errorf("power: %s", o)
	}
	run, trials := plannableCosts().Record()
	costs := ownedRecord(t, "costs", savedRun(t, "costs", run, trials))
	if o := a.done(t, "plan", costs, "--for", "rate=600"); !strings.Contains(o.stdout, "mesh at rate 600 needs ") {
		t.Errorf("plan: %s", o)
	}
	return []string{"page.html"}
}

func keysWork(t *testing.T, a actor) []string {
	if o := a.done(t, "node", "keys", "--dir", "keys", "n1"); !strings.Contains(o.stdout, "keys/n1.key") {
		t.Errorf("node keys: %s", o)
	}
	return []string{"keys"}
}

// serves starts tare app http at an address, asks it for something, and ends it.
func serves(t *testing.T, a actor, address string) {
	t.Helper()
	p := a.start(t, "app", "http", "--listen", address)
	p.waitFor(t, "/ (Ctrl-C ends it)")
	url := regexp.MustCompile(`http://\S+`).FindString(p.stdout.String())
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("GET %s: %s, %v", url, r.Status, err)
	}
	p.signal(t, syscall.SIGTERM)
	if o := p.wait(t); o.code != 0 {
		t.Errorf("app http: %s", o)
	}
}

func appWorks(t *testing.T, a actor) []string {
	serves(t, a, "127.0.0.1:0")
	return nil
}

var lowPorts = map[cap.Value]func(t *testing.T, with, lacks actor){
	cap.NET_BIND_SERVICE: func(t *testing.T, with, lacks actor) {
		address := privilegedAddress(t)
		serves(t, with, address)
		lacks.refused(t, cap.NET_BIND_SERVICE, "app", "http", "--listen", address)
	},
}

// privilegedAddress returns a free loopback address at which unprivileged users may not listen.
func privilegedAddress(t *testing.T) string {
	t.Helper()
	first := 1024 // lowest port that every user may listen at
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil {
		if first, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			t.Fatal(err)
		}
	}
	for port := first - 1; port > 0; port-- {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		l.Close()
		return address
	}
	t.Skip("needs ports that not everybody may listen at (net.ipv4.ip_unprivileged_port_start)")
	return ""
}

func loadWorks(t *testing.T, a actor) []string {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	o := a.done(t, "load", "http", "--url", server.URL, "--rate", "100", "--duration", "300ms", "--json")
	var r struct{ Done int64 }
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil || r.Done == 0 {
		t.Errorf("%v: %s", err, o)
	}
	return nil
}

func exectraceRights() rightsTest {
	group := fmt.Sprintf("tare-test-rights-%d", os.Getpid())
	return rightsTest{
		refused: func(*testing.T) [][]string { return [][]string{{"subject", "exectrace", "--for", "1s"}} },
		works: func(t *testing.T, a actor) []string {
			traces(t, a, exec.Command("true"))
			return nil
		},
		more: map[cap.Value]func(t *testing.T, with, lacks actor){
			cap.DAC_READ_SEARCH: func(t *testing.T, with, lacks actor) {
				dir := hiddenGroup(t, v2(t), "/"+group)
				below := filepath.Join(dir, "below")
				if err := os.Mkdir(below, 0o755); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { removeGroup(t, below) }) // before the one that it is in
				inside := exec.Command("sh", "-c", "echo $$ > "+dir+"/cgroup.procs && exec true")
				traces(t, with, inside, "--cgroup", dir)
				for _, hidden := range []string{dir, below} {
					lacks.refused(t, cap.DAC_READ_SEARCH, "subject", "exectrace", "--for", "1s", "--cgroup", hidden)
				}
			},
		},
	}
}

func kernelmeshRights() rightsTest {
	group := fmt.Sprintf("/tare-test-rights-mesh-%d", os.Getpid())
	var args []string
	return rightsTest{
		refused: func(t *testing.T) [][]string {
			dir := filepath.Join(v2(t).Mount, group)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeGroup(t, dir) })
			services := filepath.Join(ownDir(t), "services.yaml")
			text := "services: [{address: 10.96.0.1:80, endpoints: [{address: 127.0.0.1:8080}]}]\n"
			if err := os.WriteFile(services, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			args = []string{"subject", "kernelmesh", "--human", "--services", services, "--cgroup", dir}
			return [][]string{args}
		},
		works: func(t *testing.T, a actor) []string {
			p := a.start(t, args...)
			p.waitFor(t, "kernelmesh serves 1 service, 1 endpoint ")
			p.signal(t, syscall.SIGINT)
			if o := p.wait(t); o.code != 0 {
				t.Errorf("kernelmesh: %s", o)
			}
			return nil
		},
	}
}

// v2 is the hierarchy of control groups v2. A test without one is skipped.
func v2(t *testing.T) *cgroup.Hierarchy {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := layout.V2()
	if !ok {
		t.Skip("needs control groups v2")
	}
	return h
}

// traces has tare subject exectrace trace a command that executes true(1).
func traces(t *testing.T, a actor, traced *exec.Cmd, flags ...string) {
	t.Helper()
	p := a.start(t, append([]string{"subject", "exectrace", "--output", "table"}, flags...)...)
	whileItRuns(t, p, func() bool { return strings.Contains(p.stderr.String(), "exectrace: ready\n") })
	if out, err := traced.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", traced, err, out)
	}
	// The columns are the time, the user, the process, its parent and its name.
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^\S+ +\d+ +%d +\d+ +true `, traced.Process.Pid))
	whileItRuns(t, p, func() bool { return line.MatchString(p.stdout.String()) })
	p.signal(t, syscall.SIGINT)
	if o := p.wait(t); o.code != 0 {
		t.Errorf("exectrace: %s", o)
	}
}

// hiddenGroup makes a control group that only root may list or look into, and removes it at the end.
func hiddenGroup(t *testing.T, h *cgroup.Hierarchy, path string) string {
	t.Helper()
	dir, _ := h.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, dir) })
	return dir
}

// diagnosis holds the part of tare doctor --json that tests look at.
type diagnosis struct {
	Features []feature.Status
}

func (d diagnosis) find(name string) feature.Status {
	i := slices.IndexFunc(d.Features, func(s feature.Status) bool { return s.Name == name })
	if i < 0 {
		return feature.Status{}
	}
	return d.Features[i]
}

func readDiagnosis(t *testing.T, o output) (d diagnosis) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.stdout), &d); err != nil {
		t.Fatalf("%v: %s", err, o)
	}
	return d
}

// needsFeature skips a test where not even root has a feature.
func needsFeature(t *testing.T, name string) {
	t.Helper()
	if s := readDiagnosis(t, tare(t, "doctor", "--json")).find(name); !s.Available {
		t.Skipf("needs %s: %s", name, s.Detail)
	}
}

func doctorWorks(t *testing.T, a actor) []string {
	o := a.run(t, "doctor", "--json")
	if o.code != 0 {
		t.Errorf("doctor: %s", o)
	}
	d, all := readDiagnosis(t, o), readDiagnosis(t, tare(t, "doctor", "--json"))
	for i := range all.Features {
		if i >= len(d.Features) || d.Features[i].Name != all.Features[i].Name {
			t.Fatalf("it does not have all that root's has: %s", o)
		}
		s := d.Features[i]
		if !s.Available && (s.Detail == "" || s.Needs == "" || s.Lost == "" || s.Hint == "") {
			t.Errorf("what is missing is not fully said: %+v", s)
		}
		if !s.Available && all.Features[i].Available && !strings.Contains(s.Hint, "root") {
			t.Errorf("it is not said that root has it: %+v", s)
		}
	}
	return nil
}

// doctorFeatures tests, for some capabilities, a feature that is there only with the capability.
func doctorFeatures() map[cap.Value]func(t *testing.T, with, lacks actor) {
	more := map[cap.Value]func(t *testing.T, with, lacks actor){}
	for c, name := range map[cap.Value]string{
		cap.SYS_ADMIN: "bpf-syscall", cap.SYSLOG: "bpf-addresses", cap.DAC_OVERRIDE: "cgroup-create",
		cap.NET_ADMIN: "local-nodes",
	} {
		more[c] = func(t *testing.T, with, lacks actor) {
			needsFeature(t, name)
			if s := readDiagnosis(t, with.run(t, "doctor", "--json")).find(name); !s.Available {
				t.Errorf("with %s there is no %s: %+v", nameOf(c), name, s)
			}
			if c == cap.SYSLOG {
				needsHiddenAddresses(t)
			}
			o := lacks.run(t, "doctor", "--json")
			s := readDiagnosis(t, o).find(name)
			if s.Available || !strings.Contains(s.Needs, nameOf(c)) || (o.code == int(fault.Machine)) != s.Required {
				t.Errorf("without %s there is %s: %+v", nameOf(c), name, s)
			}
			with.wrote(t)
			lacks.wrote(t)
		}
	}
	return more
}

// needsHiddenAddresses skips a test where the kernel shows its addresses even to processes without CAP_SYSLOG, or to
// none at all (kallsyms_show_value in kernel/ksyms_common.c).
func needsHiddenAddresses(t *testing.T) {
	t.Helper()
	restrict := kernelSetting(t, "kptr_restrict")
	if restrict > 1 || restrict == 0 && kernelSetting(t, "perf_event_paranoid") < 2 {
		t.Skip("needs a kernel that shows its addresses to CAP_SYSLOG alone (kernel.kptr_restrict, " +
			"kernel.perf_event_paranoid)")
	}
}

// kernelSetting returns the value of a setting below kernel in sysctl(8).
func kernelSetting(t *testing.T, name string) int {
	t.Helper()
	return numberIn(t, "/proc/sys/kernel/"+name)
}

const addressesHidden = "bpf-addresses-hidden" // code of the warning

// warning returns the text of a ledger's warning, or "" if the ledger lacks the warning.
func warning(l *ledger.Ledger, code string) string {
	for _, w := range l.Warnings {
		if w.Code == code {
			return w.Message
		}
	}
	return ""
}

// topOfAgentWorks shows the ledger of an agent, which another user serves.
func topOfAgentWorks(t *testing.T, a actor) []string {
	text := tare(t, "weigh", "--for", "100ms", "--hz", "0", "--json").stdout
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, text) // if this fails, the comparison below does
	}))
	defer agent.Close()
	o := a.done(t, "top", "--agent", agent.Listener.Addr().String(), "--once", "--json")
	if got, want := readLedger(t, o.stdout), readLedger(t, text); got.Window.Start != want.Window.Start {
		t.Errorf("the window began at %v, want %v", got.Window.Start, want.Window.Start)
	}
	return nil
}

func weighRights() rightsTest {
	x := ledgerRights("weigh", func(t *testing.T, a actor, limited ...string) *ledger.Ledger {
		t.Helper()
		args := append(slices.Clone(limited), bin, "weigh", "--for", "400ms", "--json")
		o := command{binary: args[0], args: args[1:], dir: a.dir, user: a.user, has: a.has}.start(t).wait(t)
		if o.code != 0 {
			t.Fatalf("with %v: %s", a.has, o)
		}
		l := readLedger(t, o.stdout)
		return &l
	})
	weighs := x.works
	x.works = func(t *testing.T, a actor) []string {
		top := readLedger(t, a.done(t, "top", "--every", "400ms", "--once", "--json").stdout)
		if !top.CPU.Closes() || top.Programs != nil {
			t.Errorf("top: the budget is %+v, with %d programs", top.CPU, len(top.Programs))
		}
		return weighs(t, a)
	}
	x.more[cap.SYS_PTRACE] = func(t *testing.T, with, lacks actor) {
		id := disguisedShim(t)
		found := func(l *ledger.Ledger) bool {
			return slices.ContainsFunc(l.Sandboxes, func(s ledger.Sandbox) bool { return s.ID == id })
		}
		const hidden = "programs-hidden"
		if l := x.weighed(t, with); !found(l) || warning(l, hidden) != "" {
			t.Errorf("the sandbox %s is not found: %+v, %+v", id, l.Sandboxes, l.Warnings)
		}
		if l := x.weighed(t, lacks); found(l) || !strings.Contains(warning(l, hidden), "CAP_SYS_PTRACE") {
			t.Errorf("that sandboxes may be missing is not said: %+v, %+v", l.Sandboxes, l.Warnings)
		}
	}
	return x.rightsTest
}

// weighingTest tests the row of a command that gives a ledger.
type weighingTest struct {
	rightsTest
	weighed func(t *testing.T, a actor, limited ...string) *ledger.Ledger
}

// ledgerRights tests a command that gives a ledger. weighed runs it as an actor, started by the command line limited if
// there is one. The name is part of the names of what the test makes.
func ledgerRights(
	name string, weighed func(t *testing.T, a actor, limited ...string) *ledger.Ledger,
) weighingTest {
	group := fmt.Sprintf("/tare-test-rights-%s-%d", name, os.Getpid())
	return weighingTest{weighed: weighed, rightsTest: rightsTest{
		alone: true, // the rings of several samplers of one user may be more than that user may have
		works: func(t *testing.T, a actor) []string {
			l := weighed(t, a)
			counted, held := 0, 0
			for _, c := range l.Cgroups {
				if c.CPUSeconds != nil {
					counted++
				}
				if c.Memory != nil {
					held++
				}
			}
			if !l.CPU.Closes() || l.CPU.Capacity <= 0 || counted == 0 || held == 0 {
				t.Errorf("of %d groups %d have CPU time and %d memory: %+v", len(l.Cgroups), counted, held, l.CPU)
			}
			for code, hint := range map[string]string{"no-programs": "CAP_SYS_ADMIN", "no-samples": "CAP_PERFMON",
				"no-witness": "CAP_BPF and CAP_PERFMON"} {
				if code == "no-samples" && kernelSetting(t, "perf_event_paranoid") < 1 {
					continue // everybody may sample
				}
				if text := warning(l, code); !strings.Contains(text, "; run") || !strings.Contains(text, hint) {
					t.Errorf("the warning %s has no hint: %q", code, text)
				}
			}
			return nil
		},
		more: map[cap.Value]func(t *testing.T, with, lacks actor){
			cap.SYS_ADMIN: func(t *testing.T, with, lacks actor) {
				id := busyProgram(t)
				l := weighed(t, with)
				if p := programOf(t, *l, id); p.RunSeconds == nil || *p.RunSeconds == 0 || !l.CPU.Closes() || l.Maps == nil {
					t.Errorf("the budget is %+v, the program %+v", l.CPU, p)
				}
				l = weighed(t, lacks)
				if l.Programs != nil || l.Maps != nil || l.CPU.BPFUnsplit != nil || l.Self.BPFBytes != nil ||
					!strings.Contains(warning(l, "no-programs"), "CAP_SYS_ADMIN") {
					t.Errorf("programs %v, maps %v, %+v, %+v", l.Programs, l.Maps, l.CPU, l.Warnings)
				}
				needsFeature(t, "sampling")
				needsFeature(t, "witness")
				l = weighed(t, newActor(t, cap.BPF, cap.PERFMON))
				if l.Programs != nil || l.Host.Sampler == "" || l.Noise == nil {
					t.Errorf("with the smaller capabilities: programs %v, %+v, %+v", l.Programs, l.Host, l.Warnings)
				}
			},
			cap.DAC_READ_SEARCH: func(t *testing.T, with, lacks actor) {
				layout, err := cgroup.Discover(cgroup.Roots{})
				if err != nil {
					t.Fatal(err)
				}
				h, ok := layout.CPU()
				if !ok {
					t.Skip("needs a hierarchy of control groups that counts CPU time")
				}
				below := filepath.Join(hiddenGroup(t, h, group), "below")
				if err := os.Mkdir(below, 0o755); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { removeGroup(t, below) })
				known := func(l *ledger.Ledger, path string) bool {
					return slices.ContainsFunc(l.Cgroups, func(c ledger.Cgroup) bool {
						return strings.HasSuffix(c.Path, path) && c.CPUSeconds != nil
					})
				}
				if l := weighed(t, with); !known(l, group) || !known(l, group+"/below") || warning(l, "group-unread") != "" {
					t.Errorf("the group %s or what is in it is not known: %+v, %+v", group, l.Cgroups, l.Warnings)
				}
				l := weighed(t, lacks)
				if known(l, group) || known(l, group+"/below") || !l.CPU.Closes() ||
					!strings.Contains(warning(l, "group-unread"), "CAP_DAC_READ_SEARCH") {
					t.Errorf("that the group %s is not known is not said: %+v, %+v", group, l.Cgroups, l.Warnings)
				}
			},
			cap.SYSLOG: func(t *testing.T, with, lacks actor) {
				needsHiddenAddresses(t)
				id := busyProgram(t)
				l := weighed(t, with)
				if warning(l, "no-samples") != "" {
					t.Skip("needs sampling")
				}
				s := programOf(t, *l, id).Shares
				for range 20 { // on a busy machine the program runs for a few samples only
					if len(s) != 1 || !strings.Contains(s[0].Note, "are needed") {
						break
					}
					l = weighed(t, with)
					s = programOf(t, *l, id).Shares
				}
				if len(s) == 0 || s[0].Cgroup == nil || warning(l, addressesHidden) != "" {
					t.Errorf("the run time is not split: %+v, %+v", s, l.Warnings)
				}
				l = weighed(t, lacks)
				p := programOf(t, *l, id)
				ran, known := p.RanSeconds()
				if len(p.Shares) != 1 || p.Shares[0].Cgroup != nil ||
					!strings.Contains(p.Shares[0].Note, "addresses of its machine code are unknown") ||
					l.CPU.BPFUnsplit == nil || !known || *l.CPU.BPFUnsplit < 0.99*ran || p.SampledSeconds != nil ||
					warning(l, "samples-below-run-time") != "" ||
					!strings.Contains(warning(l, addressesHidden), "CAP_SYSLOG") {
					t.Errorf("that the run time is not split is not said: %+v, %+v, %+v", p, l.CPU, l.Warnings)
				}
			},
			cap.IPC_LOCK: func(t *testing.T, with, lacks actor) {
				needsFullRings(t)
				other := newActor(t, with.has...).start(t, "weigh", "--for", "1m")
				whileItRuns(t, other, func() bool { return ringsOf(t, other.pid) >= runtime.NumCPU() })
				limited := []string{"/bin/sh", "-c", `ulimit -l 0 && exec "$0" "$@"`}
				if l := weighed(t, with, limited...); warning(l, "no-samples") != "" {
					t.Errorf("with CAP_IPC_LOCK: %+v", l.Warnings)
				}
				l := weighed(t, lacks, limited...)
				if !strings.Contains(warning(l, "no-samples"), "CAP_IPC_LOCK") || l.Host.Sampler != "" || l.Programs == nil {
					t.Errorf("without CAP_IPC_LOCK: %+v, %+v", l.Host, l.Warnings)
				}
				other.signal(t, syscall.SIGINT)
				if o := other.wait(t); o.code != 0 {
					t.Errorf("the other sampler: %s", o)
				}
			},
		},
	}}
}

// busyProgram runs an eBPF program over and over until the test ends, and returns its ID.
func busyProgram(t *testing.T) uint32 {
	t.Helper()
	p, err := busy.Load("tare_test_busy")
	if err != nil {
		t.Fatal(err)
	}
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
			}
			if err := busy.Run(p, 100); err != nil {
				t.Errorf("running the program: %v", err)
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(end)
		<-ended
		p.Close()
	})
	return uint32(id)
}

// needsFullRings skips a test unless the rings of two samplers are more than a user may have without CAP_IPC_LOCK.
func needsFullRings(t *testing.T) {
	t.Helper()
	const each = 260 // KiB of a ring for each CPU; with more than 64 CPUs rings are smaller
	if may := kernelSetting(t, "perf_event_mlock_kb"); may >= 2*each || runtime.NumCPU() > 64 {
		t.Skipf("needs kernel.perf_event_mlock_kb below %d, and at most 64 CPUs", 2*each)
	}
}

// ringsOf returns how many rings of samples a process has mapped.
func ringsOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "anon_inode:[perf_event]")
}

// disguisedShim starts a process, owned by root, that only the name of its program file shows to be the shim of a
// sandbox. It returns the ID of the sandbox.
func disguisedShim(t *testing.T) string {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "containerd-shim-runc-v2")
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("disguised-%d", os.Getpid())
	c := exec.Command(path)
	c.Args = []string{"sh", "-c", "read x", "-id", id}
	in, err := c.StdinPipe() // the shell waits for input until the test ends
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); c.Wait() })
	return id
}

// recorded reads an actor's run of one block, whose trials must all have worked. It does not matter here if the
// machine's noise spoils one, and so makes the whole run invalid.
func recorded(t *testing.T, a actor, o output, dir string) *record.Contents {
	t.Helper()
	c, err := record.Read(filepath.Join(a.dir, dir))
	if err != nil {
		t.Fatalf("%v: %s", err, o)
	}
	trials := len(c.Run.Plan) // of one block
	if all := firstAttempts(c); o.code != 0 && o.code != int(fault.Invalid) || len(all) != trials || trials < 3 {
		t.Fatalf("%d trials, want %d: %s", len(all), trials, o)
	}
	for _, tr := range c.Trials {
		if tr.Validity.Failed != "" || tr.Ledger == nil {
			t.Errorf("the trial %d of %s failed: %s", tr.Index, tr.Arm, tr.Validity.Failed)
		}
	}
	return c
}

func runRights() rightsTest {
	var plain *record.Contents // the run of the actor in works, which lacks CAP_SYSLOG
	specFor := func(t *testing.T) string {
		t.Helper()
		path := filepath.Join(ownDir(t), "spec.yaml")
		if err := os.WriteFile(path, []byte(shortSpec), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return rightsTest{
		refused: func(*testing.T) [][]string {
			return [][]string{
				{"run", "quickstart", "--quick", "--blocks", "1", "--out", "run"},
				{"try", "--blocks", "1", "--out", "tried", "--", "sleep", "infinity"},
			}
		},
		works: func(t *testing.T, a actor) []string {
			o := a.run(t, "run", "quickstart", "--quick", "--blocks", "1", "--out", "run")
			plain = recorded(t, a, o, "run")
			for _, tr := range plain.Trials {
				kernelmeshCounted(t, tr)
			}
			// With this seed the trial of the command comes first. The trials of the baseline are like those of the run above.
			p := a.start(t, "try", "--load", "connections", "--blocks", "1", "--seed", "1", "--ready-after", "100ms",
				"--out", "tried", "--", "sleep", "infinity")
			whileItRuns(t, p, func() bool {
				lines, _ := os.ReadFile(filepath.Join(a.dir, "tried", record.TrialsFile))
				return strings.Contains(string(lines), "\n")
			})
			p.signal(t, syscall.SIGINT)
			o = p.wait(t)
			c, err := record.Read(filepath.Join(a.dir, "tried"))
			if err != nil || o.code != 0 && o.code != int(fault.Invalid) {
				t.Fatalf("%v: %s", err, o)
			}
			if tr := c.Trials[0]; tr.Arm != "sleep" || tr.Validity.Failed != "" || tr.Metrics["rss_bytes"] == 0 {
				t.Errorf("the trial of the arm %s has %v: %s", tr.Arm, tr.Metrics, tr.Validity.Failed)
			}
			return []string{"run", "tried"}
		},
		more: map[cap.Value]func(t *testing.T, with, lacks actor){
			cap.NET_ADMIN: func(t *testing.T, with, lacks actor) {
				needsFeature(t, "local-nodes")
				args := []string{"run", specFor(t), "--blocks", "1", "--local-nodes", "1", "--out", "run"}
				recorded(t, with, with.run(t, args...), "run")
				lacks.refused(t, cap.NET_ADMIN, args...)
			},
			cap.SYSLOG: func(t *testing.T, with, _ actor) {
				needsHiddenAddresses(t)
				o := with.run(t, "run", specFor(t), "--blocks", "1", "--out", "run")
				for _, tr := range recorded(t, with, o, "run").Trials {
					if text := warning(tr.Ledger, addressesHidden); text != "" {
						t.Errorf("with CAP_SYSLOG it says: %s", text)
					}
				}
				for _, tr := range plain.Trials {
					if !strings.Contains(warning(tr.Ledger, addressesHidden), "CAP_SYSLOG") {
						t.Errorf("that run time cannot be split by samples is not said: %+v", tr.Ledger.Warnings)
					}
					_, seen := tr.Counts["bpf_client_share"]
					for _, p := range tr.Ledger.Programs {
						// The addresses of programs that others load while samples are taken are in the ring of every sampler.
						if p.Charge == ledger.ChargeTare && len(p.Seen) > 0 {
							seen = true
						}
					}
					if seen {
						t.Errorf("run time was split by samples that show no program: %+v, %+v", tr.Counts, tr.Ledger.Programs)
					}
				}
			},
		},
	}
}

func execsRights() rightsTest {
	const late = "not-first" // code of the warning
	spec := fmt.Sprintf(traced, "2s", "100") + "  tracer: {subject: exectrace}\n"
	var plain []record.Trial // of the actor in works, which lacks CAP_SYS_NICE
	run := func(t *testing.T, a actor) []record.Trial {
		t.Helper()
		dir := ownDir(t)
		path := filepath.Join(dir, "spec.yaml")
		if err := os.WriteFile(path, []byte(spec), 0o644); err != nil {
			t.Fatal(err)
		}
		return recorded(t, a, a.run(t, "run", path, "--out", "run"), "run").Trials
	}
	return rightsTest{
		refused: func(*testing.T) [][]string { return [][]string{{"run", "trace-exec", "--out", "run"}} },
		works: func(t *testing.T, a actor) []string {
			plain = run(t, a)
			for _, tr := range plain {
				if tr.Events == nil || tr.Events.Counted == 0 || tr.Events.Counted != tr.Events.Generated {
					t.Errorf("the events of %s are %s", tr.Arm, shown(tr.Events))
				}
			}
			return []string{"run"}
		},
		more: map[cap.Value]func(t *testing.T, with, lacks actor){
			cap.SYS_NICE: func(t *testing.T, with, _ actor) {
				needsRealTime(t)
				for _, tr := range run(t, with) {
					if text := warning(tr.Ledger, late); text != "" {
						t.Errorf("with CAP_SYS_NICE it says: %s", text)
					}
				}
				for _, tr := range plain {
					if text := warning(tr.Ledger, late); !strings.Contains(text, "CAP_SYS_NICE") {
						t.Errorf("that it does not run before others is not said: %+v", tr.Ledger.Warnings)
					}
				}
			},
		},
	}
}

// needsRealTime skips a test where not even root may use real-time priority, or every user may.
func needsRealTime(t *testing.T) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur > 0 {
		t.Skip("needs a limit of real-time priority (RLIMIT_RTPRIO) of 0")
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		failed <- unix.SchedSetAttr(0, &unix.SchedAttr{
			Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: 1,
		}, 0)
	}()
	if err := <-failed; err != nil {
		t.Skipf("needs real-time priority: %v", err)
	}
}

func cleanRights() rightsTest {
	// Names of the control groups and of a network interface that a run left whose process has ended.
	var tree, link string
	rootsProcess := func(c cap.Value) func(t *testing.T, with, lacks actor) {
		return func(t *testing.T, with, lacks actor) {
			procs := filepath.Join(makeCgroup(t, tree), "cgroup.procs")
			cmd := exec.Command("sleep", "1000")
			cmd.Env = append(os.Environ(), child.Mark+"="+tree)
			defer startTied(t, cmd)()
			pid := strconv.Itoa(cmd.Process.Pid)
			if err := os.WriteFile(procs, []byte(pid), 0); err != nil {
				t.Fatal(err)
			}
			lacks.refused(t, c, "clean")
			if inside, err := os.ReadFile(procs); err != nil || string(inside) != pid+"\n" {
				t.Errorf("without %s clean left in the group %q, %v", nameOf(c), inside, err)
			}
			if o := with.done(t, "clean"); !strings.Contains(o.stdout, "ended process "+pid+" (sleep) of "+tree+"\n") {
				t.Errorf("clean: %s", o)
			}
		}
	}
	return rightsTest{
		alone: true, // other runs would remove what is left of this one
		refused: func(t *testing.T) [][]string {
			id, err := proc.FS{}.Identify()
			if err != nil {
				t.Fatal(err)
			}
			ended := exec.Command("true")
			if err := ended.Run(); err != nil {
				t.Fatal(err)
			}
			id.PID, id.Start = ended.Process.Pid, 1
			tree, link = "tare-rights-"+id.String(), fmt.Sprintf("tarerights%d", id.PID%10000)
			makeCgroup(t, tree)
			return [][]string{{"clean"}}
		},
		works: func(t *testing.T, a actor) []string {
			if o := a.done(t, "clean"); !strings.Contains(o.stdout, "removed the control groups "+tree+"\n") {
				t.Errorf("clean: %s", o)
			}
			if o := newActor(t).done(t, "clean"); !strings.Contains(o.stdout, "nothing to remove") {
				t.Errorf("clean without capabilities: %s", o)
			}
			return nil
		},
		more: map[cap.Value]func(t *testing.T, with, lacks actor){
			cap.NET_ADMIN: func(t *testing.T, with, lacks actor) {
				attributes := netlink.NewLinkAttrs()
				attributes.Name = link
				pair := netlink.NewVeth(attributes)
				pair.PeerName = link + "b"
				if err := netlink.LinkAdd(pair); errors.Is(err, unix.EOPNOTSUPP) {
					t.Skip("needs pairs of virtual interfaces (CONFIG_VETH)")
				} else if err != nil {
					t.Fatal(err)
				}
				defer netlink.LinkDel(pair)
				if err := netlink.LinkSetAlias(pair, tree); err != nil {
					t.Fatal(err)
				}
				lacks.refused(t, cap.NET_ADMIN, "clean")
				if o := with.done(t, "clean"); !strings.Contains(o.stdout, "removed the network interface "+link+"\n") {
					t.Errorf("clean: %s", o)
				}
			},
			cap.SYS_PTRACE: rootsProcess(cap.SYS_PTRACE),
			cap.KILL:       rootsProcess(cap.KILL),
		},
	}
}

// TestReadersKeepFewCapabilities: a command that only reads the machine gives up at once, even as root, all
// capabilities that the table does not have for it, except CAP_BPF and CAP_PERFMON, which CAP_SYS_ADMIN includes.
func TestReadersKeepFewCapabilities(t *testing.T) {
	needsRoot(t)
	for _, row := range readRightsTable(t) {
		name := strings.Trim(row.command, "`")
		args := map[string][]string{"tare weigh`, `top": {bin, "weigh", "--for", "1m"}, "tare doctor": {bin, "doctor"},
			"tare-agent": {"", "--listen", "127.0.0.1:0"}}[name]
		if args == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if args[0] == "" {
				args[0] = agentProgram(t)
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			fillPipe(t, w) // so that doctor, which would soon be done, waits while it is looked at
			c := exec.Command(args[0], args[1:]...)
			c.Stdout = w
			defer startTied(t, c)()
			kept := slices.Concat(row.needs, row.more, []cap.Value{cap.BPF, cap.PERFMON})
			status := ""
			for deadline := time.Now().Add(30 * time.Second); !keeps(status, kept); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("want no more than %v: %s", kept, status)
				}
				status = ""
				tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", c.Process.Pid))
				for _, task := range tasks {
					text, _ := os.ReadFile(task) // it may have gone
					status += string(text)
				}
			}
		})
	}
}

// keeps reports whether all threads in status, which is the text of their /proc/PID/status, have just the given
// capabilities, as far as this process has them, and cannot get others.
func keeps(status string, some []cap.Value) bool {
	found := capabilities.FindAllStringSubmatch(status, -1)
	for _, m := range found {
		var want uint64
		for _, c := range some {
			in, err := cap.GetBound(c)
			if err == nil && in && m[1] != "CapAmb" {
				want |= 1 << c
			}
		}
		if m[1] == "NoNewPrivs" {
			want = 1
		}
		if n, err := strconv.ParseUint(m[2], 16, 64); err != nil || n != want {
			return false
		}
	}
	return len(found) > 0
}
