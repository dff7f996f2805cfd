// Package packages holds what the deb and rpm packages are made from, and the test that installs them.
package packages

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"tare/test/binary"
	"tare/test/long"
)

// suite is the Debian that packages are installed into.
const suite = "bookworm"

// TestInstalled builds two releases, and has Debian's own tools install, upgrade, check and remove them in fresh roots.
func TestInstalled(t *testing.T) {
	long.Test(t, "3 min: it makes two releases and two roots of Debian")
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("needs mmdebstrap")
	}
	tree := copyOfTree(t)
	old := release(t, tree, "0.1.0-rc.1")
	dist := release(t, tree, "0.1.0")

	t.Run("the same again", func(t *testing.T) {
		again := release(t, tree, "0.1.0")
		for _, name := range []string{"tare_*.deb", "tare-agent_*.deb", "tare-0*.rpm", "tare-agent-0*.rpm", "*.tar"} {
			one, two := file(t, dist, name), file(t, again, name)
			if !bytes.Equal(read(t, one), read(t, two)) {
				t.Errorf("%s is not the same as %s", two, one)
			}
		}
	})
	t.Run("the image", func(t *testing.T) { testImage(t, file(t, dist, "tare-agent.oci.tar")) })

	fresh := debian(t)
	put(t, fresh, old, dist)
	t.Run("debs without systemd", func(t *testing.T) { testDebs(t, fresh) })

	full := debian(t, "systemd", "systemd-sysv", "man-db", "bash-completion", "lintian", "rpm", "skopeo", "cpio")
	put(t, full, old, dist)
	t.Run("debs with systemd", func(t *testing.T) { testDebs(t, full) })
	t.Run("manuals and completions", func(t *testing.T) { testManuals(t, full) })
	t.Run("lintian", func(t *testing.T) {
		full.run(t, "lintian --allow-root --fail-on error,warning /new/*.deb")
	})
	t.Run("unit", func(t *testing.T) { testUnit(t, full) })
	t.Run("service", func(t *testing.T) { testService(t, full) })
	t.Run("rpms", func(t *testing.T) { testRPMs(t, full) })
	t.Run("the image for others", func(t *testing.T) {
		for _, kind := range []string{"oci-archive", "docker-archive"} {
			full.wants(t, "skopeo inspect "+kind+":/new/tare-agent.oci.tar | grep -o 'image.version.*'",
				`image.version": "0.1.0"`)
		}
	})
}

// testDebs installs an older version, upgrades it, removes and purges it.
func testDebs(t *testing.T, r root) {
	before := r.files(t)
	r.run(t, "dpkg -i /old/*.deb")
	r.wants(t, "tare version | head -n 1", "tare      0.1.0-rc.1")
	r.wants(t, "tare-agent --version | cut -d ' ' -f 1-3", "tare-agent version 0.1.0-rc.1")

	r.run(t, "echo '# changed' >> /etc/tare/agent.yaml; dpkg -i /new/*.deb")
	r.wants(t, "tare version | head -n 1", "tare      0.1.0")
	r.wants(t, "tare-agent --version | cut -d ' ' -f 1-3", "tare-agent version 0.1.0")
	r.wants(t, "tail -n 1 /etc/tare/agent.yaml", "# changed")
	r.wants(t, "dpkg --verify tare tare-agent", "??5?????? c /etc/tare/agent.yaml")
	if r.hasSystemd() {
		r.wants(t, "systemctl is-enabled tare-agent", "enabled")
	}

	r.run(t, "dpkg -r tare tare-agent; test ! -e /usr/bin/tare; test ! -e /usr/bin/tare-agent")
	r.wants(t, "tail -n 1 /etc/tare/agent.yaml", "# changed")
	r.run(t, "dpkg -P tare tare-agent")
	if left := added(before, r.files(t)); len(left) > 0 {
		t.Errorf("purged, the packages leave\n%s", strings.Join(left, "\n"))
	}
}

// testRPMs does the same with RPM, whose scripts run as on its own distributions.
func testRPMs(t *testing.T, r root) {
	const rpm = "rpm --force-debian --nodeps "
	r.run(t, "rpm --initdb")
	before := r.files(t)
	r.run(t, rpm+"-i /old/*.rpm")
	r.wants(t, "tare-agent --version | cut -d ' ' -f 1-3", "tare-agent version 0.1.0-rc.1")
	r.run(t, "echo '# changed' >> /etc/tare/agent.yaml")
	r.run(t, rpm+"-U /new/*.rpm")
	r.wants(t, "tare version | head -n 1", "tare      0.1.0")
	r.wants(t, "tail -n 1 /etc/tare/agent.yaml", "# changed")
	r.wants(t, "rpm -V --nodeps tare tare-agent || true", "S.5....T.  c /etc/tare/agent.yaml")
	r.wants(t, "systemctl is-enabled tare-agent", "enabled")
	r.run(t, rpm+"-e tare tare-agent")
	r.run(t, "rm /etc/tare/agent.yaml.rpmsave; rmdir /etc/tare")
	// Fedora has these directories in its package filesystem.
	before = append(before, "/usr/share/fish", "/usr/share/fish/vendor_completions.d", "/usr/share/licenses",
		"/usr/share/zsh", "/usr/share/zsh/site-functions")
	if left := added(before, r.files(t)); len(left) > 0 {
		t.Errorf("removed, the packages leave\n%s", strings.Join(left, "\n"))
	}
}

// testManuals reads the man pages and completes commands as shells do.
func testManuals(t *testing.T, r root) {
	r.run(t, "dpkg -i /new/*.deb")
	defer r.run(t, "dpkg -P tare tare-agent")
	r.wants(t, "man --warnings -Tutf8 $(man -w tare tare-weigh tare-microvm-run tare-agent) 2>&1 >/dev/null", "")
	r.wants(t, "man tare-weigh | grep -o 'Weigh this machine'", "Weigh this machine")
	const complete = `bash -c '
		. /usr/share/bash-completion/bash_completion; . /usr/share/bash-completion/completions/$0
		COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
		__start_$0 2>/dev/null; printf "%s\n" "${COMPREPLY[@]}"' `
	r.wants(t, complete+"tare tare wei", "weigh")
	r.wants(t, complete+"tare tare weigh --sand", "--sandboxes")
	r.wants(t, complete+"tare-agent tare-agent --vers", "--version")
	for _, name := range []string{"tare", "tare-agent"} {
		r.run(t, fmt.Sprintf(
			"cd /usr/share; test -s zsh/vendor-completions/_%s; test -s fish/vendor_completions.d/%[1]s.fish", name))
	}
}

// testUnit has systemd verify the unit and rate its exposure, from 0 to 10. The agent needs its capabilities and its
// view of the whole machine, which make the rating 3.2.
func testUnit(t *testing.T, r root) {
	r.run(t, "dpkg -i /new/*.deb")
	defer r.run(t, "dpkg -P tare tare-agent")
	r.wants(t, "systemd-analyze verify /usr/lib/systemd/system/tare-agent.service 2>&1", "")
	r.run(t, "systemd-analyze security --no-pager --offline=yes --threshold=33 /usr/lib/systemd/system/tare-agent.service")
}

// inMachine runs in the virtual machine. Beside the service it starts the same agent with all of root's rights: both
// must collect the same.
const inMachine = `#!/bin/bash
exec >/dev/ttyS0 2>&1
stty -F /dev/ttyS0 -opost
tare-agent --listen 127.0.0.1:9634 &
metrics() { # port
	for ((i = 0; i < 60; i++)); do
		{ exec 3<>/dev/tcp/127.0.0.1/$1; } 2>/dev/null && break
		sleep 1
	done
	printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
	sed -nE "s/^tare_agent_(collector_success|warning)/$2 &/p; s/^tare_node_cpu_seconds_total.*/$2 tare_node_cpu/p" <&3 |
		sort -u
}
metrics 9633 service; metrics 9633 service >/dev/null
metrics 9634 root
echo "service $(systemctl show -P User -P DynamicUser tare-agent | tr '\n' ' ')"
pid=$(systemctl show -P MainPID tare-agent)
echo "service $(grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/$pid/status | tr -d '\t' | tr '\n' ' ')"
echo "service user $(sed -n 's/^Uid:[[:space:]]*\([0-9]*\).*/\1/p' /proc/$pid/status)"
systemctl stop tare-agent
echo "service ended $(systemctl show -P Result tare-agent)"
echo end of check
systemctl poweroff -f
`

// testService boots the root in a virtual machine with its systemd, where the unit's restrictions hold.
func testService(t *testing.T, r root) {
	kernel, err := filepath.Glob(filepath.Join(cache(t), "kernel", "vmlinuz-*"))
	if _, lacks := exec.LookPath("qemu-system-x86_64"); lacks != nil || err != nil || len(kernel) != 1 {
		t.Skip("needs qemu-system-x86_64 and Debian's kernel: test/setup")
	}
	r.run(t, "dpkg -i /new/*.deb")
	defer r.run(t, "systemctl disable check; rm /check /etc/systemd/system/check.service; dpkg -P tare tare-agent")
	for name, text := range map[string]string{
		"check": inMachine,
		"etc/systemd/system/check.service": "[Unit]\nAfter=tare-agent.service\n[Service]\nType=oneshot\nExecStart=/check\n" +
			"[Install]\nWantedBy=multi-user.target\n",
	} {
		if err := os.WriteFile(filepath.Join(r.path, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.run(t, "systemctl enable check")
	initrd := filepath.Join(t.TempDir(), "initrd")
	// The archive lacks what the machine does not need, because all of it is held in memory.
	pack := r.command("/bin/sh", "-ec", `cd /; find . -xdev \( -path ./old -o -path ./new -o -path ./var/cache \
		-o -path ./var/lib/apt -o -path ./usr/share/doc -o -path ./usr/share/locale -o -path ./usr/share/lintian \
		-o -path './usr/share/perl*' -o -path './usr/lib/*/perl*' -o -path ./usr/bin/skopeo \) -prune -o -print |
		cpio -o -H newc --quiet`)
	f, err := os.Create(initrd)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pack.Stdout = f
	if err := pack.Run(); err != nil {
		t.Fatalf("packing the root: %v", err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
	defer stop()
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
		"-m", "3072", "-display", "none", "-serial", "stdio", "-no-reboot", "-kernel", kernel[0], "-initrd", initrd,
		"-append", "console=ttyS0 quiet rdinit=/lib/systemd/systemd systemd.show_status=no panic=-1").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("end of check")) {
		t.Fatalf("the machine: %v\n%s", err, out)
	}
	checkService(t, string(out))
}

// checkService checks that the service collects the same as an agent with all of root's rights, and that it has just
// the rights that the unit gives it.
func checkService(t *testing.T, out string) {
	t.Helper()
	says := func(who string) (lines []string) {
		for line := range strings.Lines(out) {
			_, metric, ok := strings.Cut(strings.TrimSpace(line), who+" tare_")
			// Whether an agent knows what measuring costs depends on whether something busy ran by chance.
			if ok && !strings.Contains(metric, `-cost"`) {
				lines = append(lines, metric)
			}
		}
		return lines
	}
	service, root := says("service"), says("root")
	if len(service) < 3 || !slices.Equal(service, root) {
		t.Errorf("the service has %q, and root %q", service, root)
	}
	if !regexp.MustCompile(`service user [1-9]`).MatchString(out) {
		t.Errorf("the service is root's in\n%s", out)
	}
	for _, want := range []string{
		"CapEff:" + capabilities + " ", "NoNewPrivs:1 ", "Seccomp:2 ", "service ended success",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// capabilities are those of the unit, as /proc shows them: CAP_DAC_READ_SEARCH 2, CAP_SYS_PTRACE 19, CAP_SYS_ADMIN 21,
// CAP_SYSLOG 34, CAP_PERFMON 38, CAP_BPF 39.
var capabilities = fmt.Sprintf("%016x", 1<<2|1<<19|1<<21|1<<34|1<<38|1<<39)

func cache(t *testing.T) string {
	t.Helper()
	dir, err := binary.Cache()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// testImage runs the image's programs, alone in its root.
func testImage(t *testing.T, path string) {
	img, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	checkConfig(t, c)
	r := root{path: t.TempDir()}
	tar := exec.Command("tar", "-x", "-C", r.path)
	tar.Stdin = mutate.Extract(img)
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("unpacking %s: %v\n%s", path, err, out)
	}
	for _, args := range [][]string{{c.Config.Entrypoint[0], "--version"}, {"/usr/bin/tare", "version"}} {
		out, err := r.command(args...).CombinedOutput()
		if err != nil || !slices.Contains(strings.Fields(string(out)), "0.1.0") {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	if info, err := os.Stat(filepath.Join(r.path, "tmp")); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("/tmp: %v, %v", info, err)
	}
}

func checkConfig(t *testing.T, c *v1.ConfigFile) {
	t.Helper()
	labels := c.Config.Labels
	if c.OS != "linux" || c.Config.User != "0:0" || labels["org.opencontainers.image.version"] != "0.1.0" ||
		len(labels["org.opencontainers.image.revision"]) != 40 {
		t.Errorf("configuration %+v", c)
	}
}

// copyOfTree returns a repository with one commit, which is the tree as it is, including changes that are not
// committed.
func copyOfTree(t *testing.T) string {
	t.Helper()
	top, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := `git -C "$0" ls-files -z --cached --others --exclude-standard --deduplicate |
		tar -C "$0" --null --ignore-failed-read -T - -c | tar -x
	git init -q -b main . && git add -A &&
	git -c user.name=test -c user.email=test@tare.invalid commit -q -m "the tree under test"`
	cmd := exec.Command("bash", "-c", script, top)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("copying the tree: %v\n%s", err, out)
	}
	return dir
}

// release tags the tree with a version, makes its packages and image, and returns the directory that holds them.
func release(t *testing.T, tree, version string) string {
	t.Helper()
	dist := t.TempDir()
	cmd := exec.Command("bash", "-ec",
		`unset VERSION GOFLAGS; rm -rf dist; git tag "v$0"; make packages image; git tag -d "v$0"; cp dist/* "$1"`,
		version, dist)
	cmd.Dir = tree
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("releasing %s: %v\n%s", version, err, out)
	}
	return dist
}

// root is the root directory of another system.
type root struct{ path string }

// debian makes a root with a minimal Debian and some packages.
func debian(t *testing.T, packages ...string) root {
	t.Helper()
	r := root{path: filepath.Join(t.TempDir(), "root")}
	// What mmdebstrap mounts and starts goes when it ends, and it ends with this test.
	cmd := exec.Command("unshare", "--mount-proc", "--pid", "--fork", "--kill-child", "mmdebstrap", "--mode=root",
		"--variant=minbase", "--include="+strings.Join(append(packages, "dpkg"), ","), suite, r.path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("making a root of Debian: %v\n%s", err, out)
	}
	return r
}

// put copies two releases into a root, as /old and /new.
func put(t *testing.T, r root, old, dist string) {
	t.Helper()
	for at, from := range map[string]string{"old": old, "new": dist} {
		if err := os.CopyFS(filepath.Join(r.path, at), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
}

// command returns a command that runs a program of the root in that root. What the program mounts and starts goes when
// it ends.
func (r root) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Path, cmd.Err, cmd.Dir = args[0], nil, "/"
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: r.path, Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

// run runs a script in the root, and returns what it prints.
func (r root) run(t *testing.T, script string) string {
	t.Helper()
	out, err := r.command("/bin/sh", "-ec", "mount -t proc proc /proc; "+script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// wants runs a script, which must print the given line and nothing else.
func (r root) wants(t *testing.T, script, line string) {
	t.Helper()
	if got := strings.TrimSpace(r.run(t, script)); got != line {
		t.Errorf("%s: %q, want %q", script, got, line)
	}
}

func (r root) hasSystemd() bool {
	_, err := os.Stat(filepath.Join(r.path, "usr/bin/systemctl"))
	return err == nil
}

// files lists what is in the root, without the package managers' own records, and caches and logs.
func (r root) files(t *testing.T) []string {
	t.Helper()
	return strings.Fields(r.run(t, `find / -xdev \( -path /proc -o -path /var/lib/dpkg -o -path /var/lib/rpm \
		-o -path /root/.rpmdb -o -path /var/log -o -path /var/cache/man -o -path /tmp \) -prune -o -print | sort`))
}

func added(before, after []string) (more []string) {
	was := map[string]bool{}
	for _, name := range before {
		was[name] = true
	}
	for _, name := range after {
		if !was[name] {
			more = append(more, name)
		}
	}
	return more
}

// file returns the one file that a pattern matches.
func file(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
