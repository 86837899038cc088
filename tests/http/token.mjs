// token.mjs: key sets and tokens for tests.
//
//   node token.mjs keys SET              makes four key pairs: SET.jwks (public, as the server reads it) and SET.keys (to sign with)
//   node token.mjs sign SET ALG CLAIMS [HEADER]
//                                        prints a token; CLAIMS and HEADER are JSON and go over what is usual. ALG is HS256, RS256, ES256, EdDSA,
//                                        "none" (no signature), or "confused": HS256 with the PEM of the public RSA key as the secret
import { createHmac, createPublicKey, generateKeyPairSync, randomBytes, sign } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'

const base64 = (value) => Buffer.from(value).toString('base64url')
const kid = (alg, set) => `${alg.toLowerCase()}-${set.replace(/.*\//, '')}`

function makeKeys(set) {
  const pairs = {
    RS256: generateKeyPairSync('rsa', { modulusLength: 2048 }),
    ES256: generateKeyPairSync('ec', { namedCurve: 'P-256' }),
    EdDSA: generateKeyPairSync('ed25519')
  }
  const secret = randomBytes(32)
  const keys = [{ kty: 'oct', k: secret.toString('base64url'), alg: 'HS256', use: 'sig', kid: kid('HS256', set) }]
  const kept = { HS256: secret.toString('base64url') }
  for (const [alg, { publicKey, privateKey }] of Object.entries(pairs)) {
    keys.push({ ...publicKey.export({ format: 'jwk' }), alg, use: 'sig', kid: kid(alg, set) })
    kept[alg] = privateKey.export({ format: 'pem', type: 'pkcs8' })
  }
  writeFileSync(`${set}.jwks`, JSON.stringify({ keys }))
  writeFileSync(`${set}.keys`, JSON.stringify(kept))
}

function signature(alg, kept, text) {
  if (alg === 'none') return Buffer.alloc(0)
  if (alg === 'HS256') return createHmac('sha256', Buffer.from(kept.HS256, 'base64url')).update(text).digest()
  if (alg === 'confused') return createHmac('sha256', createPublicKey(kept.RS256).export({ format: 'pem', type: 'spki' })).update(text).digest()
  if (alg === 'ES256') return sign('sha256', Buffer.from(text), { key: kept.ES256, dsaEncoding: 'ieee-p1363' })
  return sign(alg === 'RS256' ? 'sha256' : null, Buffer.from(text), kept[alg])
}

function makeToken(set, alg, claims, header = '{}') {
  const kept = JSON.parse(readFileSync(`${set}.keys`, 'utf8'))
  const now = Math.floor(Date.now() / 1000)
  const of = alg === 'none' || alg === 'confused' ? 'RS256' : alg
  const head = { alg: alg === 'confused' ? 'HS256' : alg, typ: 'JWT', kid: kid(of, set), ...JSON.parse(header) }
  const body = { sub: 'ann', tenant: 'acme', roles: ['viewer'], iat: now, exp: now + 300, ...JSON.parse(claims) }
  const text = `${base64(JSON.stringify(head))}.${base64(JSON.stringify(body))}`
  return `${text}.${signature(alg, kept, text).toString('base64url')}`
}

const [verb, set, ...rest] = process.argv.slice(2)
if (verb === 'keys' && set) makeKeys(set)
else if (verb === 'sign' && rest.length >= 2) process.stdout.write(makeToken(set, ...rest))
else {
  console.error('usage: node token.mjs keys SET | sign SET ALG CLAIMS [HEADER]')
  process.exit(2)
}
