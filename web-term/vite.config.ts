import { defineConfig } from "vite";

export default defineConfig({
  build: {
    target: "es2023",
    // The policy has no `data:` source, and its scripts may not be inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
});
