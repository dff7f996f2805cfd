// Command try boots one virtual machine of the tests, runs a script in it, and prints what the script printed:
//
//	go run ./test/vm/try 'tare doctor'
//	go run ./test/vm/try -cgroups v1 -console 'dmesg | tail'
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"tare/test/vm"
)

func main() {
	var o vm.Options
	cgroups := flag.String("cgroups", string(vm.V2), "layout of the control groups: v1, v2, hybrid or none")
	console := flag.Bool("console", false, "print the kernel's log and the script's standard error too, on standard error")
	flag.BoolVar(&o.Containers, "containers", false,
		"bring runc, QEMU and a kernel, to make containers and virtual machines in the machine")
	flag.BoolVar(&o.UserMode, "usermode", false, "a kernel in user mode, on one processor, instead of QEMU")
	files := map[string]string{}
	flag.Func("file", "bring a file: PATH-IN-THE-MACHINE=PATH-HERE (repeatable)", func(v string) error {
		at, from, ok := strings.Cut(v, "=")
		if !ok {
			return fmt.Errorf("not of the form at=from")
		}
		files[at] = from
		return nil
	})
	flag.IntVar(&o.CPUs, "cpus", 2, "processors")
	flag.IntVar(&o.MemoryMiB, "memory", 1024, "memory in MiB")
	flag.StringVar(&o.Cmdline, "cmdline", "", "added to the kernel's command line")
	flag.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "time until the machine is killed")
	flag.Parse()
	o.CgroupMode = vm.CgroupMode(*cgroups)
	script := strings.Join(flag.Args(), " ")
	brought := map[string][]byte{}
	for at, from := range files {
		var err error
		if brought[at], err = os.ReadFile(from); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if o.Containers {
		var err error
		if o.Files, err = vm.Sandboxes(o.UserMode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		script = vm.LoadModules + script
	}
	if o.Files == nil {
		o.Files = map[string][]byte{}
	}
	maps.Copy(o.Files, brought)
	r, err := vm.Boot(o, script)
	fmt.Print(r.Output)
	if *console || err != nil {
		fmt.Fprint(os.Stderr, r.Console)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(r.ExitCode)
}
