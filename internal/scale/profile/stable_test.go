package profile

import "testing"

// TestStable: a function has the same name in all builds. The symbols are from rustc 1.95, GCC 12, Clang and Go 1.26.
func TestStable(t *testing.T) {
	for want, symbols := range map[string][]string{
		// Rust, the legacy mangling
		"_ZN3web5parseE": {"_ZN3web5parse17h9a35ad26eb2bed8dE", "_ZN3web5parse17h49628cf7209bcd61E",
			"_ZN3web5parse17h49628cf7209bcd61E.llvm.1234567890123456789"},
		"_ZN43_$LT$web..m..Foo$u20$as$u20$web..m..Bar$GT$3bazE": {
			"_ZN43_$LT$web..m..Foo$u20$as$u20$web..m..Bar$GT$3baz17h0c8dea1b778a27faE",
			"_ZN43_$LT$web..m..Foo$u20$as$u20$web..m..Bar$GT$3baz17hf8073bb3d380ac13E",
		},
		// Rust, the v0 mangling: a shorter hash moves the positions of back references
		"_RNvC3web5parse": {"_RNvCsiQeqjJJGrPS_3web5parse", "_RNvCsGosXJKvsvI_3web5parse"},
		"_RNvMs_NtC3web1mINtB4_3CsvNtB4_4Foo2E8read_allB6_": {
			"_RNvMs_NtCsiQeqjJJGrPS_3web1mINtB4_3CsvNtB4_4Foo2E8read_allB6_",
			"_RNvMs_NtCsGosXJKvsvI_3web1mINtB4_3CsvNtB4_4Foo2E8read_allB6_",
		},
		"_RINvC3web4bothNtNtB2_1m3FooNtBe_3BarEB2_": {
			"_RINvCsiQeqjJJGrPS_3web4bothNtNtB2_1m3FooNtBr_3BarEB2_",
			"_RINvCsGosXJKvsvI_3web4bothNtNtB2_1m3FooNtBq_3BarEB2_",
		},
		// A position with fewer digits moves those of later back references.
		"_RNvXs7_NtNtC4core3fmt8buildersINtB5_6FromFnNCNvXsr_NtC9rustc_hir3hirNtBN_10OwnerNodesNtB7_5Debug3fmt0EB1l_" +
			"3fmtBP_": {
			"_RNvXs7_NtNtCsgEmfK2I1SDS_4core3fmt8buildersINtB5_6FromFnNCNvXsr_NtCsfqPBR87PSkx_9rustc_hir3hirNtB10_" +
				"10OwnerNodesNtB7_5Debug3fmt0EB1M_3fmtB12_.warm",
		},
		// C and C++
		"_ZL3sum1Qii": {"_ZL3sum1Qii", "_ZL3sum1Qii.constprop.0", "_ZL3sum1Qii.constprop.0.isra.0",
			"_ZL3sum1Qii.__uniq.2345.llvm.77"},
		"_ZL4deepPK1Qi":      {"_ZL4deepPK1Qi", "_ZL4deepPK1Qi.cold", "_ZL4deepPK1Qi.part.0", "_ZL4deepPK1Qi.cold.1"},
		"parse_header":       {"parse_header", "parse_header.lto_priv.1", "parse_header.part.0.cold"},
		"work._omp_fn.0":     {"work._omp_fn.0"},
		"_Z3runv.resume":     {"_Z3runv.resume"},
		"memcpy@GLIBC_2.2.5": {"memcpy@GLIBC_2.2.5"},
		// Go
		"main.main.func1.2":       {"main.main.func1.2"},
		"main.warm":               {"main.warm"},
		"store.(*Cache).cold":     {"store.(*Cache).cold"},
		"example.org/web/v2.part": {"example.org/web/v2.part"},
		"slices.pdqsort[...]":     {"slices.pdqsort[...]"},
		"runtime.memmove.abi0":    {"runtime.memmove.abi0"},
		"_cgo_Cfunc_getaddrinfo":  {"_cgo_6cc2654a8ed3_Cfunc_getaddrinfo", "_cgo_0a1b2c3d4e5f_Cfunc_getaddrinfo"},
		"_cgoexp_goCallback":      {"_cgoexp_6cc2654a8ed3_goCallback"},
	} {
		for _, s := range symbols {
			if got := stable(s); got != want {
				t.Errorf("%s is %s, want %s", s, got, want)
			}
		}
	}
}

// TestUnversioned: a library has the same name in all its versions, which differs from those of other libraries.
func TestUnversioned(t *testing.T) {
	for want, files := range map[string][]string{
		"libc.so":            {"libc.so.6", "libc-2.31.so", "libc-2.31.so (deleted)"},
		"libpython.so":       {"libpython3.11.so.1.0", "libpython3.12.so.1.0"},
		"libstd.so":          {"libstd-6108105cd7e839cf.so", "libstd-b5a965480ee51f9a.so"},
		"libgomp.so":         {"libgomp-a34b3233.so.1.0.0"},
		"libglib.so":         {"libglib-2.0.so.0.7200.4"},
		"ld-linux-x86-64.so": {"ld-linux-x86-64.so.2"},
		"libpcre2-8.so":      {"libpcre2-8.so.0.11.2"},
		"libssl3.so":         {"libssl3.so"},
		"web-1.2":            {"web-1.2", "web-1.2 (deleted)"},
	} {
		for _, file := range files {
			if got := unversioned(file); got != want {
				t.Errorf("%s is %s, want %s", file, got, want)
			}
		}
	}
}
