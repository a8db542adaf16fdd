//! Plain http through a proxy, in the absolute form that proxies expect (RFC 9112 section 3.2.2).
//!
//! ureq reaches every target through a proxy by CONNECT. Proxies commonly allow CONNECT to port 443 alone (squid's
//! default), so a plain-http registry behind one needs the ordinary form: `GET http://registry:5000/v2/ HTTP/1.1`.

use std::io::{Read as _, Write as _};

use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, Resolver as _};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, RustlsConnector, TcpConnector, Transport,
    TransportAdapter,
};

/// Opens connections to a proxy for requests of the plain-http origin `origin` (`http://host:port`). Each connection
/// carries one request: the caller keeps none of them for another.
#[derive(Debug)]
pub(crate) struct ForwardConnector {
    pub(crate) proxy: Uri,
    pub(crate) origin: String,
}

impl Connector<()> for ForwardConnector {
    type Out = ForwardTransport;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Self::Out>, ureq::Error> {
        let addrs = DefaultResolver::default()
            .resolve(&self.proxy, details.config, details.timeout)
            .map_err(super::resolve::resolve_failure)?;
        let to_proxy = ConnectionDetails {
            uri: &self.proxy,
            addrs,
            config: details.config,
            request_level: details.request_level,
            resolver: details.resolver,
            now: details.now,
            timeout: details.timeout,
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        let tcp = Connector::<()>::connect(&TcpConnector::default(), &to_proxy, None)?;
        let Some(connected) = RustlsConnector::default().connect(&to_proxy, tcp)? else { return Ok(None) };
        let boxed: Box<dyn Transport> = Box::new(connected);
        let stream = TransportAdapter::new(boxed, details.current_time.clone());
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(ForwardTransport { stream, buffers, origin: Some(self.origin.clone()) }))
    }
}

/// A connection to a proxy that makes the target of its one request absolute.
pub(crate) struct ForwardTransport {
    stream: TransportAdapter,
    buffers: LazyBuffers,
    /// Until the request line has been sent.
    origin: Option<String>,
}

impl std::fmt::Debug for ForwardTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForwardTransport").finish_non_exhaustive()
    }
}

impl Transport for ForwardTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.set_timeout(timeout);
        let mut output = &self.buffers.output()[..amount];
        if let Some(origin) = self.origin.take_if(|_| !output.is_empty()) {
            // The first bytes of a connection are `METHOD SP PATH`.
            let method = output.iter().position(|byte| *byte == b' ').map_or(0, |at| at + 1);
            self.stream.write_all(&output[..method])?;
            self.stream.write_all(origin.as_bytes())?;
            output = &output[method..];
        }
        self.stream.write_all(output)?;
        self.stream.flush()?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.set_timeout(timeout);
        let count = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().is_open()
    }
}
