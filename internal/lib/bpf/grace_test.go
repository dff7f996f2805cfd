package bpf

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// TestWait: a program that is running when Wait is called has ended when Wait returns. The program can be preempted,
// so that the test proves something on a machine with one CPU too.
func TestWait(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	state, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "tare_test_grace", Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	counts, memory, err := MapArray[struct{ Begun, Ended uint64 }](state)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	begun, ended := &counts[0].Begun, &counts[0].Ended

	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	function := func(name string, parameters ...string) *btf.Func {
		f := &btf.FuncProto{Return: number}
		for _, p := range parameters {
			f.Params = append(f.Params, btf.FuncParam{Name: p, Type: number})
		}
		return &btf.Func{Name: name, Type: f, Linkage: btf.StaticFunc}
	}
	// The program records that it has begun, works for a while, and records that it has ended.
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_test_grace", Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{
			btf.WithFuncMetadata(asm.LoadMapValue(asm.R6, state.FD(), 0).WithSymbol("run"), function("run", "ctx")),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreMem(asm.R6, 0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R1, 1<<23), // the most that bpf_loop takes
			asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc,
				Constant: -1}.WithReference("step"),
			asm.Mov.Imm(asm.R3, 0),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnLoop.Call(),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreMem(asm.R6, 8, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
			btf.WithFuncMetadata(asm.Mov.Imm(asm.R0, 0).WithSymbol("step"), function("step", "index", "ctx")),
			asm.Return(),
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()

	during := 0
	for range 20 {
		atomic.StoreUint64(begun, 0)
		atomic.StoreUint64(ended, 0)
		done := make(chan error, 1)
		go func() {
			_, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 14), Repeat: 1})
			done <- err
		}()
		for deadline := time.Now().Add(time.Minute); atomic.LoadUint64(begun) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the program has not begun after a minute")
			}
		}
		running := atomic.LoadUint64(ended) == 0
		if err := WaitForPrograms(); err != nil {
			t.Fatal(err)
		}
		if atomic.LoadUint64(ended) == 0 {
			t.Error("waited, and the program was still running")
		}
		if running {
			during++
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the program was running at %d of 20 calls", during)
	if during == 0 {
		t.Skip("needs a kernel that preempts programs, or more than one CPU")
	}
}
