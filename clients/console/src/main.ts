/** The console: mounts the application; everything else follows from the address and from what the server sends. */

import { mount } from "svelte";
import App from "./App.svelte";
import "./theme.css";
import "./layout.css";

const target = document.getElementById("app");
if (target === null) throw new Error("the page has no #app");
mount(App, { target });
