import { defineConfig } from "vite";

// The build makes one classic script and one style sheet, and no page: Go writes the page and embeds both in it.
export default defineConfig({
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    cssCodeSplit: false,
    lib: { entry: "src/main.ts", formats: ["iife"], name: "tareReport", fileName: () => "report.js",
      cssFileName: "report" },
    license: { fileName: "licenses.md" }, // of the bundled packages; it is embedded in the binary, like the script
    reportCompressedSize: false,
  },
  logLevel: "warn",
});
