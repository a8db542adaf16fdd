//! Everything that survives a reboot: database, pods, events, images, blobs, layer directories, sweep, fsck.
