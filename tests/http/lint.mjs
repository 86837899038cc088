// lint.mjs: is contracts/openapi.json a good document? Prints what is not, and exits with 1.
//
// First the rules of OpenAPI 3.1 (an npm validator), then ours: names, references, problems, roles, closed objects, bounds, examples.
import { METHODS, load, lookUp, packages, pointer, readDocument } from './openapi.mjs'

const ROLES = ['viewer', 'operator', 'producer', 'worker', 'admin']
const INTEGER_MAX = 2 ** 53 - 1
const found = []
const say = (where, what) => found.push(`${where}: ${what}`)
let rules = 0
const rule = (holds, where, what) => { rules++; if (!holds) say(where, what) }

async function standard(doc) {
  const require = packages()
  const { Validator } = await import(require.resolve('@seriousme/openapi-schema-validator'))
  const result = await new Validator().validate(structuredClone(doc))
  rule(result.valid, 'openapi.json', `not valid OpenAPI 3.1: ${JSON.stringify(result.errors)?.slice(0, 500)}`)
  rule(doc.openapi === '3.1.0', 'openapi.json', 'openapi is not 3.1.0')
}

// Calls visit(node, path) for every object of the document; names under `properties` and examples are data, not keywords.
function walk(node, path, visit) {
  if (node === null || typeof node !== 'object') return
  if (!Array.isArray(node)) visit(node, path)
  for (const [key, value] of Object.entries(node)) {
    if (['examples', 'example', 'default', 'const', 'enum'].includes(key) && path.at(-1) !== 'properties') continue
    walk(value, [...path, key], visit)
  }
}

function references(doc) {
  const used = new Set()
  walk(doc, [], (node, path) => {
    if (typeof node.$ref !== 'string') return
    rule(lookUp(doc, node.$ref) !== undefined, path.join('/'), `${node.$ref} leads nowhere`)
    used.add(node.$ref)
  })
  for (const [kind, parts] of Object.entries(doc.components)) {
    if (kind === 'securitySchemes') continue
    for (const name of Object.keys(parts)) rule(used.has(`#/components/${kind}/${name}`), `components/${kind}/${name}`, 'nobody uses it')
  }
}

function schemas(doc) {
  walk(doc, [], (node, path) => {
    if (path.at(-1) === 'properties') return
    const where = path.join('/')
    if (node.type === 'integer') {
      rule(Number.isInteger(node.minimum), where, 'an integer without minimum')
      rule(Number.isInteger(node.maximum) && node.maximum <= INTEGER_MAX, where, 'an integer without maximum, or one over 2^53-1')
    }
    if (node.type === 'object' && node.properties) rule('additionalProperties' in node, where, 'an object that does not say whether others may be there')
    for (const name of node.required instanceof Array ? node.required : []) {
      if (node.properties) rule(name in node.properties, where, `"${name}" is required and not described`)
    }
    if (node.pattern) rule(compiles(node.pattern), where, `the pattern ${node.pattern} is none`)
  })
}

function compiles(pattern) {
  try {
    return Boolean(new RegExp(pattern, 'u'))
  } catch {
    return false
  }
}

function operations(doc, api) {
  const ids = new Set()
  for (const { id, path, method, op, parameters } of api.operations) {
    const where = `${method} ${path}`
    rule(typeof id === 'string' && /^[a-z][A-Za-z]+$/.test(id), where, 'operationId is missing or odd')
    rule(!ids.has(id), where, `operationId ${id} is used twice`)
    ids.add(id)
    rule(op.summary?.length > 0 && op.description?.length > 0, where, 'summary or description is missing')
    rule(op.tags?.length === 1 && doc.tags.some((t) => t.name === op.tags[0]), where, 'needs one tag that is declared')
    rule(Object.keys(op.responses).some((c) => c.startsWith('2')), where, 'no answer of 200 to 299')
    const roles = op['x-cairn-roles']
    rule(Array.isArray(roles) && roles.length > 0 && roles.every((r) => ROLES.includes(r)), where, 'x-cairn-roles is missing or odd')
    rule(roles?.includes('admin'), where, 'admin may do everything')
    answers(where, op, roles ?? [], api)
    pathParameters(where, path, parameters)
    bodies(where, method, op)
  }
}

function answers(where, op, roles, api) {
  const open = op.security.some((s) => Object.keys(s).length === 0)
  const must = open ? ['400', '503'] : ['400', '401', '429', '503']
  if (!open && roles.length < ROLES.length) must.push('403')
  if (where.includes('{')) must.push('404')
  for (const code of must) rule(code in op.responses, where, `no answer ${code}`)
  for (const [code, node] of Object.entries(op.responses)) {
    const response = api.resolve(node)
    rule(response?.description?.length > 0, `${where} ${code}`, 'no description')
    rule('X-Request-Id' in (response?.headers ?? {}), `${where} ${code}`, 'no X-Request-Id')
    if (Number(code) >= 400) rule('application/problem+json' in (response?.content ?? {}), `${where} ${code}`, 'not a problem')
    if (code === '429' || code === '503') rule('Retry-After' in response.headers, `${where} ${code}`, 'no Retry-After')
    if (code === '401') rule('WWW-Authenticate' in response.headers, `${where} ${code}`, 'no WWW-Authenticate')
    const empty = ['204', '304'].includes(code)
    rule(empty === !response?.content, `${where} ${code}`, empty ? 'it has a body' : 'it has no body')
  }
}

function pathParameters(where, path, parameters) {
  const named = [...path.matchAll(/\{([^}]+)\}/g)].map((m) => m[1])
  const declared = parameters.filter((p) => p.in === 'path').map((p) => p.name)
  rule(named.sort().join() === declared.sort().join(), where, `the path has {${named}}, the parameters ${declared}`)
  const seen = new Set()
  for (const p of parameters) {
    rule(p.schema !== undefined && p.description?.length > 0, where, `parameter ${p.name} has no schema or description`)
    rule(!seen.has(p.in + p.name.toLowerCase()), where, `parameter ${p.name} stands twice`)
    seen.add(p.in + p.name.toLowerCase())
    if (p.in === 'header') rule(!['accept', 'content-type', 'authorization'].includes(p.name.toLowerCase()), where, `OpenAPI ignores a header parameter ${p.name}`)
  }
}

function bodies(where, method, op) {
  if (method === 'GET' || method === 'DELETE') rule(!op.requestBody, where, 'a body where there is none')
  if (!op.requestBody) return
  for (const code of ['413', '415']) rule(code in op.responses, where, `takes a body and has no answer ${code}`)
}

function examples(doc, api) {
  let count = 0
  walk(doc, [], (node, path) => {
    if (!Array.isArray(node.examples) || path.at(-1) === 'properties') return
    for (const [i, example] of node.examples.entries()) {
      count++
      const bad = api.invalid(pointer(...path), example)
      rule(bad === null, path.join('/'), `example ${i + 1}: ${bad}`)
    }
  })
  rule(count >= 5, 'examples', `only ${count}`)
}

// Every schema must compile by itself, whether an answer ever uses it or not.
function compile(doc, api) {
  for (const name of Object.keys(doc.components.schemas)) {
    try {
      rules++
      api.invalid(pointer('components', 'schemas', name), null)
    } catch (error) {
      say(`components/schemas/${name}`, error.message)
    }
  }
}

const doc = readDocument()
const api = load(doc)
await standard(doc)
references(doc)
schemas(doc)
operations(doc, api)
if (found.every((line) => !line.endsWith('leads nowhere'))) { // else nothing compiles
  compile(doc, api)
  examples(doc, api)
}
rule(Object.values(doc.paths).every((item) => Object.keys(item).every((k) => METHODS.includes(k))), 'paths', 'something that is no method')
found.forEach((line) => console.log(line))
console.log(`openapi.json: ${api.operations.length} operations, ${Object.keys(doc.components.schemas).length} schemas; ${rules - found.length} passed, ${found.length} failed, 0 skipped`)
process.exit(found.length ? 1 : 0)
