import { render } from "preact";
import { lendNonce } from "./browser";
import { followTheme } from "./theme";
import { App } from "./view/app";
import { Login } from "./view/login";
import "./style/tokens.css";
import "./style/components.css";
import "./style/page.css";

lendNonce();
followTheme();
const root = document.getElementById("root");
if (root) render(location.pathname === "/login" ? <Login /> : <App />, root);
