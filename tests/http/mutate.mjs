// mutate.mjs: requests with exactly one rule broken, and requests that nobody sends in good faith.
//
// breakOne(req, world) returns a label, or null when nothing fits. A change of a body is used only if the document's own schema
// refuses the result, so that what is broken is surely broken.
import { bodyOf } from './generate.mjs'
import { pointer } from './openapi.mjs'

const WRONG = [null, true, 12, 1.5, 'x', [], {}, [1], { a: 1 }]
const PLAN_OPS = new Set(['putPlan', 'validatePlan'])

export function breakOne(req, world) {
  const r = world.random
  const ways = [...queryWays(req), ...headerWays(req), ...pathWays(req)]
  if (req.type && !req.text) ways.push(...bodyWays(req, world), ...bodyWays(req, world))
  for (let tries = 0; tries < 8 && ways.length > 0; tries++) {
    const label = r.pick(ways)(r)
    if (label) return label
  }
  return null
}

// ---- query ----

function queryWays(req) {
  const ways = [(r) => { const name = r.pick(['nope', 'Limit', 'limits', 'limit[]', '$top', 'tenantid', 'ż'.repeat(50), 'l' + 'ż'.repeat(50), '\x01', '']); req.query.push([name, '1']); return `unknown parameter ${name}` }]
  const params = req.op.parameters.filter((p) => p.in === 'query')
  for (const p of params) {
    ways.push((r) => {
      const schema = p.schema
      if (p.style === 'form' && p.explode) return badQuery(req, p, r, true)
      if (r.chance(0.25) && schema) return repeat(req, p)
      return badQuery(req, p, r, false)
    })
    if (p.required) ways.push(() => { req.query = req.query.filter(([n]) => n !== p.name); return `parameter ${p.name} is missing` })
  }
  return ways
}

function repeat(req, p) {
  const had = req.query.find(([n]) => n === p.name)
  const value = had?.[1] ?? { limit: '5', follow: 'false', inconsistent: 'true' }[p.name]
  if (value === undefined) return null
  if (!had) req.query.push([p.name, value])
  req.query.push([p.name, value])
  return `parameter ${p.name} twice`
}

function badQuery(req, p, r, isList) {
  const s = resolveDeep(req, isList ? req.world.api.resolve(p.schema).items : p.schema)
  const bad = badTexts(s, p.name, r)
  if (bad === null) return null
  req.query = req.query.filter(([n]) => n !== p.name)
  req.query.push([p.name, bad.text])
  if (bad.raw) req.rawQuery = p.name
  return `parameter ${p.name}: ${bad.text.slice(0, 60)}`
}

const resolveDeep = (req, schema) => req.world.api.resolve(schema)

// A text that the schema of a parameter refuses. (Blanks around, signs and the like: a number is digits.)
function badTexts(s, name, r) {
  const plain = (text) => ({ text, raw: false })
  if (r.chance(0.1)) return { text: r.pick(['%', '%zz', '%ff', '%c3', '%00', '%ed%a0%80']), raw: true }
  if (name === 'cursor') return plain(r.pick(['!', 'AAAA', 'x'.repeat(2000), 'eyJhIjoxfQ==', '0', 'bm9wZQ', '-1']))
  if (s.type === 'integer') return plain(r.pick([String(s.minimum - 1), s.maximum >= Number.MAX_SAFE_INTEGER ? '9007199254740993' : String(s.maximum + 1), 'abc', '', '1.5', '1e2', ' 1', '+1', '0x1', '99999999999999999999', '-9223372036854775809', 'NaN', '١']))
  if (s.type === 'boolean') return plain(r.pick(['yes', '1', 'TRUE', '', 'truee', 'null']))
  if (s.enum) return plain(r.pick(['NOPE', '', s.enum[0].toLowerCase(), `${s.enum[0]} `, `${s.enum[0]},NOPE`, `${s.enum[0]},`]))
  if (s.format === 'date-time') return plain(r.pick(['yesterday', '2026-13-01T00:00:00Z', '2026-02-30T00:00:00Z', '2026-02-16', '2026-02-16T08:00:00', '2026-02-16T08:00:00+01:00', '1', '', '2026-02-16T25:00:00Z', '2026-02-16T08:00:00.1234567890Z']))
  if (s.format === 'uuid') return plain(r.pick(['x', '', '00000000-0000-0000-0000-00000000000', '{00000000-0000-4000-8000-000000000000}', '0'.repeat(32)]))
  if (s.minLength >= 1) return plain(r.pick(['', 'z'.repeat(s.maxLength + 1)]))
  return null
}

// ---- headers ----

function headerWays(req) {
  const key = req.op.parameters.find((p) => p.in === 'header' && p.name === 'Idempotency-Key')
  const ways = []
  if (key && !key.description.includes('means nothing')) {
    ways.push((r) => {
      req.headers = req.headers.filter(([n]) => n !== 'Idempotency-Key')
      req.headers.push(['Idempotency-Key', r.pick(['', 'k'.repeat(256), 'two words', 'schl\xfcssel', 'tab\there', '\x80'])])
      return 'Idempotency-Key'
    })
  }
  if (req.op.id === 'updateKey') ways.push(() => { req.headers = req.headers.filter(([n]) => n !== 'If-Match'); return 'If-Match is missing' })
  if (['listRunEvents', 'listEvents'].includes(req.op.id)) {
    ways.push((r) => { req.headers = [['Accept', r.pick(['image/png', 'text/html', 'application/xml', 'application/json;q=0'])]]; return 'Accept' })
  }
  return ways
}

// ---- path ----

function pathWays(req) {
  const names = Object.keys(req.args)
  if (names.length === 0) return []
  return [(r) => {
    const name = r.pick(names)
    const raw = { eventId: ['x', 'ffff', '00000000-0000-0000-0000-00000000000g'], effectId: ['x', 'requeue', '0'.repeat(32)], correlationId: ['x', '0'.repeat(32)], sha256: ['x', 'A'.repeat(64), '0'.repeat(63)], keyId: ['x', 'ABCDEFGHIJKLMNOP', 'a'.repeat(17)], runId: ['no such run', '%', 'r'.repeat(256), 'a|b'] }[name]
    req.args = { ...req.args, [name]: r.pick(raw) }
    if (req.value?.runId || req.lines) return null // then the body does not fit either: two rules
    return `path ${name}`
  }, (r) => {
    req.target = req.op.path.replace(/\{[^}]+\}/g, () => r.pick(['%', '%zz', '%f', '%ff', '%c3%28', '%00', '%ed%a0%80', 'a%00b']))
    return 'escapes in the path'
  }]
}

// ---- bodies ----

function bodyWays(req, world) {
  const ways = [(r) => wrongType(req, r)]
  if (req.op.op.requestBody.required) ways.push(() => { clearBody(req); return 'no body' })
  if (req.op.id === 'validatePlan') return ways // its findings are an answer
  if (req.lines) return [...ways, (r) => breakLine(req, world, r), (r) => breakLine(req, world, r)]
  ways.push((r) => breakText(req, r))
  if (PLAN_OPS.has(req.op.id)) return ways
  const ref = pointer('paths', req.op.path, req.op.method.toLowerCase(), 'requestBody', 'content', req.type, 'schema')
  ways.push((r) => breakValue(req, world, ref, r), (r) => breakValue(req, world, ref, r), (r) => breakValue(req, world, ref, r))
  return ways
}

function clearBody(req) {
  delete req.value
  delete req.lines
  delete req.text
}

function wrongType(req, r) {
  const raw = bodyOf(req)
  if (raw === undefined || raw.length === 0) return null
  req.raw = raw
  req.type = r.pick([undefined, 'text/plain', 'application/xml', 'application/jsonx', 'multipart/form-data; boundary=x', 'application/x-www-form-urlencoded', 'json', 'application/', '*/*', 'application/json, application/json', 'application/octet-stream'])
  return `content type ${req.type}`
}

// JSON that is none, or that readers understand differently.
function breakText(req, r) {
  const text = JSON.stringify(req.value)
  const member = /^\{("(?:[^"\\]|\\.)*":(?:"(?:[^"\\]|\\.)*"|-?\d+|true|false|null))/.exec(text)?.[1]
  const first = text.indexOf(':"')
  const ways = {
    'cut off': text.slice(0, -1),
    'something after it': text + r.pick(['x', '{}', ',', '\0', ']']),
    'not an object': r.pick(['[]', 'null', '"x"', '12', 'true', `[${text}]`]),
    'no JSON': r.pick([req.op.op.requestBody.required ? '' : '{,}', ' ', '{', 'undefined', "{'a':1}", '{a:1}', '\ufeff' + text, `/* */${text}`]),
    'a comma at the end': text.length > 2 ? text.slice(0, -1) + ',}' : null,
    'a member twice': member ? `{${member},${text.slice(1)}` : null,
    'bad UTF-8': first > 0 ? Buffer.concat([Buffer.from(text.slice(0, first + 2)), Buffer.from(r.pick(['ff', 'c3', 'c080', 'eda080', 'f4908080']), 'hex'), Buffer.from(text.slice(first + 2))]) : null,
    'half a surrogate': first > 0 ? text.slice(0, first + 2) + '\\ud800' + text.slice(first + 2) : null,
    'a raw control byte': first > 0 ? text.slice(0, first + 2) + '\x01' + text.slice(first + 2) : null,
    'nested deeply': text.length > 2 ? text.slice(0, -1) + `,"surplus":${'['.repeat(2000)}${']'.repeat(2000)}}` : null
  }
  const label = r.pick(Object.keys(ways))
  if (ways[label] === null || (PLAN_OPS.has(req.op.id) && ['a comma at the end', 'a member twice', 'no JSON', 'something after it'].includes(label))) return null
  req.raw = Buffer.isBuffer(ways[label]) ? ways[label] : Buffer.from(ways[label])
  return `body: ${label}`
}

function breakLine(req, world, r) {
  const ref = pointer('paths', req.op.path, req.op.method.toLowerCase(), 'requestBody', 'content', req.type, 'x-cairn-item-schema')
  const i = r.int(0, req.lines.length - 1)
  if (typeof req.lines[i] !== 'object') return null
  req.blank = r.chance(0.2) // a line without anything counts as a line, and has no answer
  const line = structuredClone(req.lines[i])
  if (r.chance(0.3)) {
    req.lines[i] = r.pick(['{', 'x', '[]', 'null', JSON.stringify(line).slice(0, -1), JSON.stringify(line) + ' 1'])
    req.badLine = i
    return `line ${i + 1}: ${req.lines[i].slice(0, 20)}`
  }
  const label = breakMember(line, world.api.resolve({ $ref: refOf(req, 'x-cairn-item-schema') }), world, r)
  if (!label || world.api.invalid(ref, line) === null) return null
  req.lines[i] = line
  req.badLine = i
  return `line ${i + 1}: ${label}`
}

const refOf = (req, member) => req.op.op.requestBody.content[req.type][member].$ref

function breakValue(req, world, ref, r) {
  const value = structuredClone(req.value)
  const label = breakMember(value, world.api.resolve({ $ref: refOf(req, 'schema') }), world, r)
  if (!label || world.api.invalid(ref, value) === null) return null
  req.value = value
  return `body: ${label}`
}

// Breaks one member of an object, or of an object inside it.
function breakMember(value, schema, world, r, at = '') {
  const names = Object.keys(value).filter((n) => schema.properties?.[n])
  const inner = names.filter((n) => world.api.resolve(schema.properties[n]).properties && value[n] && typeof value[n] === 'object')
  if (inner.length > 0 && r.chance(0.5)) {
    const n = r.pick(inner)
    return breakMember(value[n], world.api.resolve(schema.properties[n]), world, r, `${at}/${n}`)
  }
  const kind = r.int(0, 3)
  if (kind === 0 && schema.required?.length > 0) {
    const n = r.pick(schema.required)
    delete value[n]
    return `${at}/${n} is missing`
  }
  if (kind === 1 && schema.additionalProperties === false) {
    const n = r.pick(['surplus', '__proto__', 'RunId', 'runid', 'a/b~c', '', 'ż'.repeat(40), 'l' + 'ż'.repeat(40), 'nul\0'])
    Object.defineProperty(value, n, { value: r.json(1), enumerable: true, configurable: true })
    return `${at}/${n} is surplus`
  }
  if (names.length === 0) return null
  const n = r.pick(names)
  value[n] = badValue(world.api.resolve(schema.properties[n]), value[n], r)
  return `${at}/${n} is ${JSON.stringify(value[n])?.slice(0, 40)}`
}

function badValue(s, was, r) {
  if (s.type === 'integer') return r.pick([s.minimum - 1, s.maximum + 1, 1.5, 1e300, '1', ...WRONG])
  if (s.type === 'string' && r.chance(0.6)) {
    const ways = ['']
    if (s.maxLength) ways.push('l'.repeat(s.maxLength + 1))
    if (s.enum) ways.push('NOPE')
    if (s.format || s.pattern) ways.push('|', 'not that', `${was} `, ` ${was}`, `${was}\n`)
    return r.pick(ways)
  }
  if (s.type === 'array' && Array.isArray(was)) return r.pick([[], [...was, 'nope'], [...was, ...was], [null], 'x', {}])
  return r.pick(WRONG)
}

// ---- hostile ----

// { method, target, headers, body, rawHead?, label }: any documented answer is fine, but there must be one.
export function hostile(world) {
  const r = world.random
  const path = r.pick(world.api.operations).path.replace(/\{[^}]+\}/g, () => encodeURIComponent(world.runId()))
  const get = (target, label, headers = []) => ({ method: 'GET', target, headers, label })
  const json = [['Content-Type', 'application/json']]
  const ways = [
    () => ({ method: r.pick(['PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS', 'TRACE', 'CONNECT', 'PROPFIND', 'get', 'FOO', 'M-SEARCH', 'G\tT']), target: path, headers: [], label: 'odd method' }),
    () => get(r.pick(['/v1%2Fruns', '/v1/runs%2F', '//v1/runs', '/v1//runs', '/v1/runs/', '/v1/runs/../keys', '/v1/./runs', '/%2e%2e/etc/passwd', '/v1/runs/a%2Fb', '/v1/runs/%252e', '/V1/RUNS', '/v1/runs;x=1', '/', '/v1', '/v1/', '/.well-known/x', '/v1/runs%00', '/v1/runs/%2e%2e/%2e%2e']), 'odd path'),
    () => get(r.pick(['/v1/runs/\x01', '/v1/ru\x00ns', '/v1/runs/\x7f', '/v1/runs/ü', '/v1/runs/\xff\xfe', '/v1/runs/a b', '/v1/runs#x', '/v1/runs/"<>', '/v1/runs/{x}', '/v1/runs\\x']), 'bytes in the path'),
    () => get(`/v1/runs/${'p'.repeat(r.pick([255, 256, 1000, 8000, 8200, 20000]))}`, 'long path'),
    () => get(`/v1/runs?${r.pick(['&&&', '=', 'limit', 'limit=', '=1', 'a&b', '?', '%', 'limit=1&', 'limit=1;x', '%6cimit=1', 'limit=%31', 'q'.repeat(5000)])}`, 'odd query'),
    () => get(`/v1/runs?${Array.from({ length: 500 }, (_, i) => `p${i}=1`).join('&')}`, 'many parameters'),
    () => get('/v1/runs', 'odd Accept', [['Accept', r.pick(['', ',', 'a/b;q=2', '*/*;q=0', ';;;', 'x'.repeat(4000), 'application/json;q=abc', 'text/*, */*', '\xff'])]]),
    () => get('/v1/runs', 'odd traceparent', [['traceparent', r.pick(['', '00', '00-0-0-0', `00-${'0'.repeat(32)}-${'0'.repeat(16)}-01`, `ff-${r.hex(32)}-${r.hex(16)}-01`, `00-${r.hex(32)}-${r.hex(16)}-01-x`, 'x'.repeat(3000)])]]),
    () => get(path, 'odd header', [r.pick([['Range', 'bytes=0-0'], ['Range', 'bytes=9-1'], ['If-Modified-Since', 'x'], ['If-None-Match', '"'], ['If-Match', '*'], ['Origin', 'https://evil.example'], ['Cookie', 'a=b'], ['X-Forwarded-For', '1.2.3.4'], ['X-HTTP-Method-Override', 'DELETE'], ['Last-Event-ID', 'x'], ['Prefer', 'wait=99999999999'], ['Accept-Encoding', 'gzip, br'], ['Upgrade', 'websocket'], ['Content-Encoding', 'gzip'], ['X', 'y'.repeat(20000)], ['TE', 'trailers']])]),
    () => get(path, 'expect', [['Expect', r.pick(['100-continue', '200-ok', ''])]]),
    () => get(path, 'odd host', [['Host', r.pick(['evil.example', '', '[::1]', 'localhost:1', 'a b', '127.0.0.1.evil.example', 'LOCALHOST'])]]),
    () => get(path, 'odd authorization', [['Authorization', r.pick(['', 'Bearer', 'Bearer ', 'Basic YTpi', 'bearer x', 'Bearer cairn_aaaaaaaaaaaaaaaa_' + 'b'.repeat(43), 'Bearer a.b.c', 'Bearer eyJhbGciOiJub25lIn0.e30.', 'Bearer ' + 'x'.repeat(17000)])]]),
    () => ({ method: 'POST', target: r.pick(['/v1/runs', '/v1/keys', '/v1/tasks/poll', '/v1/plans']), headers: json, body: r.pick(['['.repeat(100000), '{"a":'.repeat(5000), `{"a":${'9'.repeat(50000)}}`, `{"a":1e${'9'.repeat(300)}}`, `"${'\\u0000'.repeat(1000)}"`, `{"${'k'.repeat(100000)}":1}`, `[${'0,'.repeat(100000)}0]`, `{${Array.from({ length: 5000 }, (_, i) => `"k${i}":0`).join()}}`]), label: 'monstrous JSON' }),
    () => ({ method: 'POST', target: '/v1/events', headers: [['Content-Type', 'application/x-ndjson']], body: r.pick(['\n'.repeat(5000), '{}\n'.repeat(4097), '\r\n{}\r\n', '{}', `${'x'.repeat(1100000)}\n`, '\0\n', '{}\n\n{}\n', '']), label: 'odd lines' }),
    () => ({ method: 'POST', target: '/v1/tasks/results', headers: [['Content-Type', 'application/x-ndjson']], body: r.pick(['{}\n'.repeat(1001), '{"task":"x"}\n'.repeat(1000), '{"task":"x","output":1,"error":{"code":"A"}}\n']), label: 'odd results' }),
    () => ({ method: 'POST', target: '/v1/runs', headers: [...json, ['Transfer-Encoding', 'chunked']], body: '2\r\n{}\r\n0\r\n\r\n', label: 'chunked' }),
    () => ({ method: 'POST', target: path, headers: [['Content-Length', '0']], label: 'empty body' }),
    () => ({ method: 'GET', target: '/v1/runs', headers: json, body: '{"a":1}', label: 'GET with a body' })
  ]
  const chosen = r.pick(ways)()
  // Twenty bad keys a minute, and the address has to wait: then there would be nothing left to test.
  if (chosen.label === 'odd authorization' && world.keyed && world.badKeys++ > 0) return hostile(world)
  return chosen
}
