import { defineConfig } from "vite";

// One classic script and one style sheet, without a page: Go writes the page and puts both inside it.
export default defineConfig({
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    cssCodeSplit: false,
    lib: { entry: "src/main.ts", formats: ["iife"], name: "tareReport", fileName: () => "report.js",
      cssFileName: "report" },
    license: { fileName: "licenses.md" }, // of what is bundled; the binary carries it beside the script
    reportCompressedSize: false,
  },
  logLevel: "warn",
});
