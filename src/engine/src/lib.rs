//! What can be done with pods and images. Synchronous; no tokio, no SQL, no libcontainer.
