//! The outside view: harness, lifecycle, hostile images, faults, tidy.
