package names

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
	"tare/test/long"
)

const testImage = "tare.test/box:1"

// TestEngines asks real engines for containers, and finds the names of their groups in the files that they write.
func TestEngines(t *testing.T) {
	long.Test(t, "20 s: containers of podman, Docker and containerd")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, c := range []struct {
		engine string
		needs  []string
		names  map[string]ledger.Name // by the script's name for the container
		pods   func(t *testing.T, root, parent string) map[string]string
	}{
		{"podman", []string{"podman", "conmon", "runc"}, map[string]ledger.Name{
			"web": {Container: "web", Image: testImage}, "short": {Container: "short", Image: testImage},
		}, nil},
		{"docker", []string{"dockerd", "docker", "containerd", "containerd-shim-runc-v2", "runc"}, map[string]ledger.Name{
			"web": {Container: "web", Image: testImage, Labels: map[string]string{"app": "shop"}},
		}, nil},
		{"containerd", []string{"containerd", "ctr", "containerd-shim-runc-v2", "runc"}, map[string]ledger.Name{
			"pod":     {Namespace: "shop", Pod: "web-0"},
			"sandbox": {Namespace: "shop", Pod: "web-0", Container: Sandbox},
			"nginx":   {Namespace: "shop", Pod: "web-0", Container: "nginx", Image: testImage},
		}, kubelet},
	} {
		t.Run(c.engine, func(t *testing.T) {
			for _, program := range append(c.needs, "busybox", "unshare") {
				if _, err := exec.LookPath(program); err != nil {
					t.Skip("needs " + program)
				}
			}
			root, err := os.MkdirTemp("", "names") // short: a socket is in it
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(root) })
			groups := start(t, c.engine, root)
			if c.pods != nil {
				groups = c.pods(t, root, groups["parent"])
			}
			r := Open(Options{Root: root})
			for _, g := range groups { // the first container of a pod gives the pod's group its name
				r.Of(g)
			}
			for name, want := range c.names {
				want.Top = groups[name]
				of := sandbox.WhoseIs(want.Top)
				want.PodUID, want.ContainerID = of.Pod, of.ID
				got := r.Of(groups[name])
				if name == "sandbox" {
					got.Image = "" // newer versions than Debian 12's have it
				}
				if want.Top == "" || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
					t.Errorf("%s:\n%+v, want\n%+v", name, got, want)
				}
			}
			if w := r.warnings(); len(w) > 0 {
				t.Errorf("%+v", w)
			}
		})
	}
}

// start runs the script that starts containers, and returns their groups by the names that it prints. They are removed
// when the test ends.
func start(t *testing.T, engine, root string) map[string]string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "engine"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "engine", "image.tar"), image(t), 0o644); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("testdata/engines.sh")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", script, engine, root, busybox)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := func() string {
		text, _ := os.ReadFile(filepath.Join(root, "engine", "log"))
		return string(text[max(0, len(text)-4000):])
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", engine, err, log())
		}
	})
	groups := map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "ready" {
			return groups
		}
		name, group, _ := strings.Cut(lines.Text(), " ")
		groups[name] = group
	}
	t.Fatalf("%s did not start:\n%s", engine, log())
	return nil
}

// image returns an image in the format of docker save that contains only a program that sleeps.
func image(t *testing.T) []byte {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	layer := archive(t, map[string][]byte{"bin/sleep": program})
	encode := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	config := encode(map[string]any{"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Cmd": []string{"/bin/sleep", "1000"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}}})
	manifest := encode([]map[string]any{{"Config": "config.json", "RepoTags": []string{testImage},
		"Layers": []string{"layer.tar"}}})
	return archive(t, map[string][]byte{"layer.tar": layer, "config.json": config, "manifest.json": manifest})
}

func archive(t *testing.T, content map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range content {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// kubelet creates a pod with one container through the CRI of containerd, like a kubelet, and returns the groups that
// it requested.
func kubelet(t *testing.T, root, parent string) map[string]string {
	conn, err := grpc.NewClient("unix://"+filepath.Join(root, "run/containerd/containerd.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// call returns the first field of the answer: an id, or an image.
	call := func(method string, request []byte) string {
		t.Helper()
		var answer []byte
		err := conn.Invoke(ctx, "/runtime.v1."+method, &request, &answer, grpc.ForceCodec(raw{}))
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		if _, _, n := protowire.ConsumeTag(answer); n > 0 {
			if id, m := protowire.ConsumeBytes(answer[n:]); m > 0 {
				return string(id)
			}
		}
		return ""
	}
	// The messages are those of cri-api's runtime/v1, by the numbers of their fields.
	const onNode = 2
	for call("ImageService/ImageStatus", field(1, field(1, []byte(testImage)))) == "" { // noticed by an event
		time.Sleep(50 * time.Millisecond)
	}
	pod := parent + "/kubepods/burstable/pod" + testPod
	host := number(1, onNode) // NamespaceOption: the network of the node, so that no plugin is needed
	config := message(
		field(1, message(field(1, []byte("web-0")), field(2, []byte(testPod)), field(3, []byte("shop")))),
		field(6, message(field(1, []byte("app")), field(2, []byte("shop")))), // a label, which no file has
		field(8, message(field(1, []byte(pod)), field(2, field(1, host)))))
	sandbox := call("RuntimeService/RunPodSandbox", field(1, config))
	container := call("RuntimeService/CreateContainer", message(field(1, []byte(sandbox)),
		field(2, message(field(1, field(1, []byte("nginx"))), field(2, field(1, []byte(testImage))),
			field(15, field(4, field(3, host))))),
		field(3, config)))
	call("RuntimeService/StartContainer", field(1, []byte(container)))
	return map[string]string{"pod": pod, "sandbox": pod + "/" + sandbox, "nginx": pod + "/" + container}
}

func field(number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

func number(field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), value)
}

func message(fields ...[]byte) []byte { return bytes.Join(fields, nil) }

// raw passes messages on as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}
