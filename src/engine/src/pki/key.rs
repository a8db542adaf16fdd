//! Keys of certificates: Ed25519 (RFC 8410), and ECDSA with P-256 and SHA-256 (RFC 5480, RFC 5758).

use gantry_model::ErrorKind;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};

use super::encode::{object_identifier, sequence};
use crate::EngineError;

/// id-Ed25519, 1.3.101.112.
const ED25519: [u8; 3] = [0x2b, 0x65, 0x70];
/// id-ecPublicKey, 1.2.840.10045.2.1.
const EC_PUBLIC_KEY: [u8; 7] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// secp256r1, 1.2.840.10045.3.1.7.
const P256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
/// ecdsa-with-SHA256, 1.2.840.10045.4.3.2.
const ECDSA_WITH_SHA256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// Bytes of an Ed25519 seed.
const SEED_LENGTH: usize = 32;
/// PKCS#8 (RFC 5958) of an Ed25519 key, without its last bytes: the seed.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// The type of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyType {
    /// Ed25519, as Talos has it.
    #[default]
    Ed25519,
    /// ECDSA with P-256, which every TLS library accepts.
    Ecdsa,
}

/// A key that signs certificates.
#[derive(Debug)]
pub(super) enum SigningKey {
    Ed25519(Ed25519KeyPair),
    Ecdsa(EcdsaKeyPair),
}

impl SigningKey {
    /// Reads a key in PKCS#8. `None`: it is of another type, or damaged.
    pub(super) fn read(pkcs8: &[u8]) -> Option<Self> {
        let ecdsa = || EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &SystemRandom::new());
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).map(Self::Ed25519).or_else(|_| ecdsa().map(Self::Ecdsa)).ok()
    }

    /// The bits of the public key.
    pub(super) fn public(&self) -> &[u8] {
        match self {
            Self::Ed25519(pair) => pair.public_key().as_ref(),
            Self::Ecdsa(pair) => pair.public_key().as_ref(),
        }
    }

    /// The AlgorithmIdentifier of the key.
    pub(super) fn key_algorithm(&self) -> Vec<u8> {
        match self {
            Self::Ed25519(_) => sequence(&[object_identifier(&ED25519)]),
            Self::Ecdsa(_) => sequence(&[object_identifier(&EC_PUBLIC_KEY), object_identifier(&P256)]),
        }
    }

    /// The AlgorithmIdentifier of its signatures.
    pub(super) fn signature_algorithm(&self) -> Vec<u8> {
        match self {
            Self::Ed25519(_) => sequence(&[object_identifier(&ED25519)]),
            Self::Ecdsa(_) => sequence(&[object_identifier(&ECDSA_WITH_SHA256)]),
        }
    }

    /// A signature of these bytes.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub(super) fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>, EngineError> {
        match self {
            Self::Ed25519(pair) => Ok(pair.sign(bytes).as_ref().to_vec()),
            Self::Ecdsa(pair) => {
                let signature = pair.sign(&SystemRandom::new(), bytes).map_err(|_| no_random_numbers())?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }
}

/// A new key.
pub(super) struct NewKey {
    pub(super) key: SigningKey,
    /// The key as PKCS#8 in DER.
    pub(super) pkcs8: Vec<u8>,
}

impl NewKey {
    /// Makes a random key.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub(super) fn generate(key_type: KeyType) -> Result<Self, EngineError> {
        let pkcs8 = match key_type {
            KeyType::Ed25519 => [&PKCS8_PREFIX[..], &random_bytes::<SEED_LENGTH>()?].concat(),
            KeyType::Ecdsa => EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
                .map_err(|_| no_random_numbers())?
                .as_ref()
                .to_vec(),
        };
        let key = SigningKey::read(&pkcs8);
        let key = key.ok_or_else(|| EngineError::new(ErrorKind::Internal, "cannot use a new key"))?;
        Ok(Self { key, pkcs8 })
    }
}

/// Random bytes.
///
/// # Errors
/// The kernel has no random numbers.
pub(super) fn random_bytes<const N: usize>() -> Result<[u8; N], EngineError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| no_random_numbers())?;
    Ok(bytes)
}

fn no_random_numbers() -> EngineError {
    EngineError::new(ErrorKind::Internal, "cannot read random numbers from the kernel")
}
