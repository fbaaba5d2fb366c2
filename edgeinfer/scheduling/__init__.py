"""WHERE and WHEN: numbers in, plan out. No arrays, no compiler, no devices."""
