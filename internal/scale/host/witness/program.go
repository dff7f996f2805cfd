package witness

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Program is the BPF program of witnesses, adapted to this kernel. That needs the kernel's types, which take megabytes
// of memory while they are read, so witnesses can share a Program. The zero value is adapted when a witness is opened
// with it.
type Program struct {
	spec   *ebpf.CollectionSpec // nil until it is adapted
	places map[string]int64     // offsets of the kernel's per-CPU variables, by name
}

// fit reads the program and adapts it, unless that has been done.
func (p *Program) fit(types *btf.Cache) error {
	if p.spec != nil {
		return nil
	}
	kernel, err := types.Kernel()
	if err != nil {
		return fmt.Errorf("reading the types of the kernel: %w", err)
	}
	if p.places, err = kernelVariables(kernel); err != nil {
		return err
	}
	spec, err := loadWitness()
	if err != nil {
		return fmt.Errorf("reading the program of the witness: %w", err)
	}
	for _, program := range spec.Programs {
		if err := relocate(program.Instructions, spec, kernel); err != nil {
			return fmt.Errorf("fitting the program of the witness to the kernel: %w", err)
		}
	}
	p.spec = spec
	return nil
}

// relocate does once what each load would do: it adjusts instructions to where this kernel has its fields.
func relocate(instructions asm.Instructions, spec *ebpf.CollectionSpec, kernel *btf.Spec) error {
	var of []*asm.Instruction
	var relocations []*btf.CORERelocation
	for i := range instructions {
		if r := btf.CORERelocationMetadata(&instructions[i]); r != nil {
			of, relocations = append(of, &instructions[i]), append(relocations, r)
		}
	}
	noIDs := func(btf.Type) (btf.TypeID, error) {
		return 0, errors.New("ids of types are only known when it is loaded")
	}
	fixups, err := btf.CORERelocate(relocations, []*btf.Spec{kernel}, spec.ByteOrder, noIDs)
	if err != nil {
		return err
	}
	for i, fixup := range fixups {
		if err := fixup.Apply(of[i]); err != nil {
			return err
		}
		*of[i] = btf.WithCORERelocationMetadata(*of[i], nil) // applied
	}
	return nil
}
